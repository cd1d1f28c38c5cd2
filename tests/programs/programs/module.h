/* What modules.c calls in module.c. */

/* Sends or receives so many bytes, in the way of message `n`: 0 at the end of the stream, -1 if it fails. */
int carry(int fd, char *room, int length, int sends, int n);

const char *whose_is_it(void);
