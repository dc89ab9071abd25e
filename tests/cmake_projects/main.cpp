#include "main.c"
