/* The text behind a status, one per thread. */
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 8192

static __thread char message[MESSAGE_BYTES];
static __thread size_t length;

/* Takes away a last character that is not complete. Texts are UTF-8: they name the user's files. */
static void cut_to_characters(void)
{
    size_t first = length - 1;
    unsigned char lead;
    while (first > 0 && ((unsigned char)message[first] & 0xc0) == 0x80) {
        first--;
    }
    lead = (unsigned char)message[first];
    if (length - first < (lead < 0xc0 ? 1u : lead < 0xe0 ? 2u : lead < 0xf0 ? 3u : 4u)) {
        length = first;
        message[length] = 0;
    }
}

static void append(const char *format, va_list arguments)
{
    const size_t room = MESSAGE_BYTES - length;
    const int written = vsnprintf(message + length, room, format, arguments);
    if (written > 0 && (size_t)written < room) {
        length += (size_t)written;
    } else if (written > 0 && room > 1) {
        length = MESSAGE_BYTES - 1;
        cut_to_characters();
    }
}

OpforgeStatus of_fail(OpforgeStatus status, const char *format, ...)
{
    va_list arguments;
    length = 0;
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
    return status;
}

void of_more(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
}

void of_describe_sizes(const int64_t *sizes, int count)
{
    int i;
    of_more("[");
    for (i = 0; i < count; i++) {
        of_more("%s%lld", i ? ", " : "", (long long)sizes[i]);
    }
    of_more("]");
}

size_t of_room(void)
{
    return MESSAGE_BYTES - 1 - length;
}

/* Puts the name of the called function in front, once, on the way out. */
OpforgeStatus of_failed_in(const char *function, OpforgeStatus status)
{
    char text[MESSAGE_BYTES];
    memcpy(text, message, length + 1);
    return of_fail(status, "%s: %s", function, text);
}

const char *of_last_error(void)
{
    return message;
}
