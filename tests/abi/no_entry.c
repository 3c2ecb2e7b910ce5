/* A shared object that is not a backend. */
int atoll_nothing_to_see_here(void);
int atoll_nothing_to_see_here(void) { return 0; }
