/* program.h: the beginning of main() that both daemons share: the command line and what a process that holds prompts
 * owes its users before it does anything else.
 */
#ifndef PENSTOCK_BASE_PROGRAM_H
#define PENSTOCK_BASE_PROGRAM_H

#include "base/conf.h"

struct program {
	const char *name;         /* "penstockd" */
	const char *summary;      /* one sentence for --help */
	const char *default_conf; /* path read when there is no --config */
	const char *version;
	bool        loads_model;     /* --check-weights is a short form of --set model.check_weights=on */
	bool        takes_listen_fd; /* the undocumented --listen-fd N: a socket inherited from this program before exec */
};

enum program_action {
	PROGRAM_RUN,   /* *ret is read and checked: go on */
	PROGRAM_DONE,  /* --help, --version, --check-config, --dump-config, --sample-config have been served: exit 0 */
	PROGRAM_FAILED /* the reason stands on standard error: exit 1 */
};

/* Reads the command line: --config FILE, --set SECTION.NAME=VALUE (repeatable, over the file), --check-config,
 * --dump-config, --sample-config, --version, --help.  RET_LISTEN_FD may be NULL; it is −1 when none was inherited. */
enum program_action program_start(const struct program *program, int argc, char **argv, struct conf *ret,
    int *ret_listen_fd);

/* Names the program in the log and opens the configured log file, or stays with standard error. */
enum status program_open_log(const struct program *program, const struct conf *conf, struct error *error);

/* May this process open COUNT descriptors?  Raises the soft limit to the hard one; STATUS_LIMIT with both numbers when that is
 * not enough.  WHY names the options they are for. */
enum status program_need_files(uint64_t count, const char *why, struct error *error);

/* No core dumps and no ptrace by others (prompts are in memory); descriptors 0 to 2 are open from here on. */
void program_harden(void);

#endif
