// Memory of the GPU, through as much of its driver as is needed for it.
#pragma once

#include <cstddef>

namespace lab {

class Memory {
  public:
    // Otherwise it is AMD's.
    static bool is_nvidias();

    explicit Memory(std::size_t bytes);
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory();

    void *get() const { return reinterpret_cast<void *>(address_); }
    void write(const void *from);
    // Waits for what writes there.
    void read(void *to) const;

  private:
    std::size_t bytes_;
    unsigned long long address_ = 0;
};

} // namespace lab
