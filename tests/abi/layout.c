/* plugin.h alone, and its layout, in C11. */
#include "atoll/plugin.h"
/* */
#include "layout.h"

const atoll_backend* atoll_backend_entry_v1(void) { return NULL; }
