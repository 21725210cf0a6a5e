/* object.c: owns the life of a shared-memory object.  Does not own what is in it.
 * Invariant: a name is visible to others only with its final owner and mode, and its magic only once its content is
 * complete; what object_create could not finish, it removes; nobody can change the size of a sealed object. */
#include "ipc/object.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static enum status make_name(const char *instance, const char *kind, char ret[OBJECT_NAME_MAX], struct error *error)
{
	size_t len = strlen(instance);

	if (len == 0 || len > OBJECT_INSTANCE_MAX)
		return error_set(error, STATUS_INVALID, "instance name has %zu characters, 1 to %d are allowed", len,
		    OBJECT_INSTANCE_MAX);
	for (size_t i = 0; i < len; i++) {
		char c = instance[i];
		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'))
			return error_set(error, STATUS_INVALID,
			    "instance name '%s': only letters, digits, '-' and '_' are allowed", instance);
	}
	snprintf(ret, OBJECT_NAME_MAX, "/penstock.%s.%s", instance, kind);
	return STATUS_OK;
}

enum status object_create(const char *instance, const char *kind, size_t bytes, unsigned mode, int gid,
    char ret_name[OBJECT_NAME_MAX], void **ret, struct error *error)
{
	char        name[OBJECT_NAME_MAX];
	enum status status = make_name(instance, kind, name, error);
	void       *map;
	int         fd, failed;

	if (status != STATUS_OK)
		return status;
	if (shm_unlink(name) && errno != ENOENT)
		return error_set(error, STATUS_IO,
		    "cannot remove the stale shared-memory object %s: %s; does it belong to another user?",
		    name, strerror(errno));
	/* Mode 0 until owner and group are right: nobody opens it in between. */
	fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0);
	if (fd < 0)
		return error_set(error, STATUS_IO, "cannot create the shared-memory object %s: %s", name, strerror(errno));
	failed = posix_fallocate(fd, 0, (off_t)bytes);
	if (failed) {
		status = error_set(error, STATUS_IO,
		    "cannot reserve %zu bytes for the shared-memory object %s: %s; is /dev/shm full?",
		    bytes, name, strerror(failed));
		goto fail;
	}
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		status = error_set(error, STATUS_IO, "cannot map %zu bytes of %s: %s", bytes, name, strerror(errno));
		goto fail;
	}
	if ((gid >= 0 && fchown(fd, (uid_t)-1, (gid_t)gid)) || fchmod(fd, mode)) {
		status = error_set(error, STATUS_IO, "cannot give %s to group %d with mode %o: %s", name, gid, mode,
		    strerror(errno));
		munmap(map, bytes);
		goto fail;
	}
	close(fd);
	memcpy(ret_name, name, sizeof name);
	*ret = map;
	return STATUS_OK;
fail:
	close(fd);
	shm_unlink(name);
	return status;
}

/* POSIX has no rename for shared memory; on Linux its names are files of this directory (shm_overview(7)). */
#define DIRECTORY "/dev/shm"

enum status object_keep(const char *instance, const char *kind, const char *kept_kind, struct error *error)
{
	char        name[OBJECT_NAME_MAX], from[OBJECT_NAME_MAX + sizeof DIRECTORY], to[OBJECT_NAME_MAX + sizeof DIRECTORY];
	enum status status = make_name(instance, kind, name, error);

	if (status)
		return status;
	snprintf(from, sizeof from, DIRECTORY "%s", name);
	make_name(instance, kept_kind, name, error);
	snprintf(to, sizeof to, DIRECTORY "%s", name);
	if (rename(from, to) && errno != ENOENT)
		return error_set(error, STATUS_IO, "cannot rename the shared-memory object %s to %s: %s; does it belong to another user?",
		    from, to, strerror(errno));
	return STATUS_OK;
}

void object_publish(void *object, uint64_t magic, uint64_t layout_hash)
{
	struct object_head *head = object;

	head->layout_hash = layout_hash;
	/* O1: release, pairs with O2. */
	atomic_store_explicit(&head->magic, magic, memory_order_release);
}

static enum status check_head(const struct object_head *head, const char *name, uint64_t magic, uint64_t layout_hash,
    struct error *error)
{
	/* O2: acquire, pairs with O1. */
	uint64_t there = atomic_load_explicit(&head->magic, memory_order_acquire);

	if (there == 0)
		return error_set(error, STATUS_UNAVAILABLE, "the shared-memory object %s is not ready yet", name);
	if (there != magic)
		return error_set(error, STATUS_INVALID, "the shared-memory object %s has magic %016jx, %016jx was expected", name,
		    (uintmax_t)there, (uintmax_t)magic);
	if (head->layout_hash != layout_hash)
		return error_set(error, STATUS_INVALID,
		    "the shared-memory object %s has layout %016jx, this program %016jx: restart the older one", name,
		    (uintmax_t)head->layout_hash, (uintmax_t)layout_hash);
	return STATUS_OK;
}

enum status object_open(const char *instance, const char *kind, size_t bytes, uint64_t magic, uint64_t layout_hash,
    void **ret, struct error *error)
{
	char                name[OBJECT_NAME_MAX];
	enum status         status = make_name(instance, kind, name, error);
	struct stat         stat;
	struct object_head *head;
	int                 fd;

	if (status != STATUS_OK)
		return status;
	fd = shm_open(name, O_RDONLY, 0);
	if (fd < 0)
		return error_set(error, errno == ENOENT || errno == EACCES ? STATUS_UNAVAILABLE : STATUS_IO,
		    "cannot open the shared-memory object %s: %s; is penstockd running, and this user in its front_group?",
		    name,
		    strerror(errno));
	if (fstat(fd, &stat)) {
		status = error_set(error, STATUS_IO, "cannot stat %s: %s", name, strerror(errno));
		close(fd);
		return status;
	}
	if (stat.st_size == 0) { /* just being made */
		close(fd);
		return error_set(error, STATUS_UNAVAILABLE, "the shared-memory object %s is not ready yet", name);
	}
	if ((uintmax_t)stat.st_size != bytes) {
		close(fd);
		return error_set(error, STATUS_INVALID,
		    "the shared-memory object %s has %jd bytes, %zu were expected: penstockd is of another build",
		    name, (intmax_t)stat.st_size, bytes);
	}
	head = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (head == MAP_FAILED) {
		status = error_set(error, STATUS_IO, "cannot map %zu bytes of %s: %s", bytes, name, strerror(errno));
		close(fd);
		return status;
	}
	close(fd);
	status = check_head(head, name, magic, layout_hash, error);
	if (status != STATUS_OK) {
		munmap(head, bytes);
		return status;
	}
	*ret = head;
	return STATUS_OK;
}

/* ---- sealed ------------------------------------------------------------------------------------------------------ */

enum status object_create_sealed(const char *kind, size_t bytes, int *ret_fd, void **ret, struct error *error)
{
	char        name[OBJECT_NAME_MAX];
	enum status status;
	void       *map;
	int         fd, failed;

	snprintf(name, sizeof name, "penstock-%s", kind);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return error_set(error, STATUS_IO, "cannot create a %s: memfd_create: %s", kind, strerror(errno));
	failed = posix_fallocate(fd, 0, (off_t)bytes);
	if (failed) {
		status = error_set(error, STATUS_IO, "cannot reserve %zu bytes for a %s: %s", bytes, kind, strerror(failed));
		goto fail;
	}
	if (fcntl(fd, F_ADD_SEALS, SEALS)) {
		status = error_set(error, STATUS_IO, "cannot seal a %s: %s", kind, strerror(errno));
		goto fail;
	}
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		status = error_set(error, STATUS_IO, "cannot map %zu bytes of a %s: %s", bytes, kind, strerror(errno));
		goto fail;
	}
	*ret_fd = fd;
	*ret = map;
	return STATUS_OK;
fail:
	close(fd);
	return status;
}

enum status object_attach_sealed(int fd, const char *kind, size_t min, size_t max, void **ret, size_t *ret_bytes,
    struct error *error)
{
	struct stat stat;
	size_t      bytes;
	void       *map;
	int         seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || fstat(fd, &stat))
		return error_set(error, STATUS_INVALID, "descriptor %d is no %s: %s", fd, kind, strerror(errno));
	if ((seals & SEALS) != SEALS)
		return error_set(error, STATUS_INVALID, "%s has seals 0x%x, 0x%x are needed: its size could change", kind, seals, SEALS);
	if (stat.st_size < 0 || (uintmax_t)stat.st_size < min || (uintmax_t)stat.st_size > max)
		return error_set(error, STATUS_INVALID, "%s has %jd bytes, %zu to %zu were expected: penstockd is of another build",
		    kind, (intmax_t)stat.st_size, min, max);
	bytes = (size_t)stat.st_size;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return error_set(error, STATUS_IO, "cannot map %zu bytes of a %s: %s", bytes, kind, strerror(errno));
	*ret = map;
	*ret_bytes = bytes;
	return STATUS_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

void object_unmap(void *object, size_t bytes)
{
	if (object)
		munmap(object, bytes);
}

void object_unlink(const char *name)
{
	if (name[0])
		shm_unlink(name);
}
