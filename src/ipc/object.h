/* object.h: shared-memory objects: how one is made, found, checked and removed.
 *
 * Two kinds.  What others only read (header, metrics) has a name, and they open it read-only.  What others write (lanes,
 * the doorbell) has none: a descriptor that may write may also truncate, and the next access of whoever maps the rest is
 * a SIGBUS.  Such an object is a memfd whose size is sealed before anybody else gets the descriptor (control.h).
 *
 * penstockd makes an object, everybody else maps it.  A named one starts with a struct object_head.  The magic is stored last
 * (release) and read first (acquire), so that a reader never believes a half-made object:
 *   O1  creator: magic.store(release) in object_publish    pairs with    O2  reader: magic.load(acquire) in object_open
 */
#ifndef PENSTOCK_IPC_OBJECT_H
#define PENSTOCK_IPC_OBJECT_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { OBJECT_NAME_MAX = 80, OBJECT_INSTANCE_MAX = 40 };

/* First bytes of every named object. */
struct object_head {
	_Atomic uint64_t magic;
	uint64_t         layout_hash;
};

/* Makes /penstock.INSTANCE.KIND anew: a stale one is unlinked first (that nobody alive uses it is the business of
 * penstockd's lock file).  BYTES are posix_fallocated, so that a full /dev/shm is an error here and not a SIGBUS later,
 * and mapped, all zero.  MODE and group GID (−1 = leave) are set before anybody else could open it.  *ret_name is for
 * object_unlink.  INSTANCE: 1…OBJECT_INSTANCE_MAX letters, digits, '-', '_'. */
enum status object_create(const char *instance, const char *kind, size_t bytes, unsigned mode, int gid,
    char ret_name[OBJECT_NAME_MAX], void **ret, struct error *error);

/* Renames /penstock.INSTANCE.KIND, if there is one, to KEPT_KIND, in place of an older one of that name. */
enum status object_keep(const char *instance, const char *kind, const char *kept_kind, struct error *error);

/* The object is filled: readers may believe it from now on. */
void object_publish(void *object, uint64_t magic, uint64_t layout_hash);

/* Maps an existing object for reading and checks size, magic and layout hash.  STATUS_UNAVAILABLE when there is none or it
 * is not published yet, STATUS_INVALID when it is of another layout. */
enum status object_open(const char *instance, const char *kind, size_t bytes, uint64_t magic, uint64_t layout_hash,
    void **ret, struct error *error);

/* Makes an object of BYTES without a name, reserved, all zero, mapped, its size sealed.  *ret_fd is for handing over; the
 * caller closes it.  KIND is a word for messages. */
enum status object_create_sealed(const char *kind, size_t bytes, int *ret_fd, void **ret, struct error *error);

/* Maps a sealed object of MIN…MAX bytes for writing; FD stays the caller's.  Magic and layout are not looked at. */
enum status object_attach_sealed(int fd, const char *kind, size_t min, size_t max, void **ret, size_t *ret_bytes,
    struct error *error);

void object_unmap(void *object, size_t bytes); /* NULL is fine */
void object_unlink(const char *name);          /* "" is fine */

#endif
