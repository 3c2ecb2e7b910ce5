/* A shared object that is no backend. */
int atoll_nothing_to_see_here(void);
int atoll_nothing_to_see_here(void) { return 0; }
