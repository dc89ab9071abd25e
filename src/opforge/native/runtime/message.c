/* The text behind a status, one per thread. */
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 8192

static __thread char message[MESSAGE_BYTES];
static __thread size_t length;

static void append(const char *format, va_list arguments)
{
    const size_t room = MESSAGE_BYTES - length;
    const int written = vsnprintf(message + length, room, format, arguments);
    if (written > 0) {
        length += (size_t)written < room ? (size_t)written : room - 1;
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
