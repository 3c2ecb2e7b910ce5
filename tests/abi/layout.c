/* Checks that plugin.h compiles in C11 without other headers, and that its layout is unchanged. */
#include "atoll/plugin.h"
/* This comment keeps the includes apart: plugin.h must come first. */
#include "layout.h"

const atoll_backend* atoll_backend_entry_v1(void) { return NULL; }
