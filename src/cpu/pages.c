/* pages.c: owns how memory is taken from and read off the system.  Does not own what is put into it.  Invariant: what
 * was taken is accounted for when the call returns (never MAP_NORESERVE), and populated pages are there. */
#include "cpu/cpu.h"

#include "base/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, HUGE_PAGES_MIN = 16, PROC_FILE_MAX = 8192, CGROUP_DEPTH_MAX = 64 };

/* Where a huge page would be a large part of the whole, small ones are taken: the first write to a page makes all of it
 * resident. */
static uint64_t page_for(uint64_t bytes) { return bytes < HUGE_PAGES_MIN * (uint64_t)HUGE_PAGE ? PAGE : HUGE_PAGE; }

uint64_t cpu_pages_round(uint64_t bytes)
{
	uint64_t rounded;
	return checked_align_up(bytes, page_for(bytes), &rounded) ? rounded : UINT64_MAX;
}

void *cpu_pages_alloc(size_t bytes, bool populate)
{
	uint64_t size = cpu_pages_round(bytes), page = page_for(bytes);
	uint8_t *area, *start;
	size_t   before;

	if (size >= SIZE_MAX / 2 || size == 0)
		return NULL;
	/* One page more, so that the area can start on a boundary; the rest is given back. */
	area = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		return NULL;
	before = (page - (uintptr_t)area % page) % page;
	start = area + before;
	if (before)
		munmap(area, before);
	munmap(start + size, page - before);
	if (page == HUGE_PAGE)
		madvise(start, size, MADV_HUGEPAGE); /* a wish */
#ifdef MADV_POPULATE_WRITE
	if (populate && madvise(start, size, MADV_POPULATE_WRITE) == 0)
		return start;
	if (populate && (errno == ENOMEM || errno == EFAULT)) {
		munmap(start, size);
		return NULL;
	}
#endif
	if (populate)
		memset(start, 0, size); /* a kernel without that advice */
	return start;
}

void cpu_pages_free(void *pages, size_t bytes)
{
	if (pages)
		munmap(pages, cpu_pages_round(bytes));
}

void cpu_pages_trim(void *pages, size_t used, size_t bytes)
{
	uint64_t from;

	if (checked_align_up(used, PAGE, &from) && from < cpu_pages_round(bytes))
		madvise((uint8_t *)pages + from, cpu_pages_round(bytes) - from, MADV_DONTNEED); /* zeros again when touched */
}

/* Reads a small file whole; false when it is not there. */
static bool read_file(const char *path, char *ret, size_t capacity)
{
	int     fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd == -1)
		return false;
	n = read(fd, ret, capacity - 1);
	close(fd);
	if (n < 0)
		return false;
	ret[n] = '\0';
	return true;
}

/* A line "NAME:  123 kB" of /proc/meminfo. */
static bool meminfo_bytes(const char *text, const char *name, uint64_t *ret)
{
	const char *line = strstr(text, name);
	uint64_t    kb;

	if (!line)
		return false;
	kb = strtoull(line + strlen(name), NULL, 10);
	return checked_mul_u64(kb, 1024, ret);
}

static bool cgroup_value(const char *group, const char *name, uint64_t *ret)
{
	char  path[PROC_FILE_MAX], text[64], *end;
	int   length = snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", group, name);

	if (length < 0 || (size_t)length >= sizeof path || !read_file(path, text, sizeof text))
		return false;
	errno = 0;
	*ret = strtoull(text, &end, 10);
	return end != text && errno == 0; /* "max" is no number: no limit */
}

/* Narrows *MEMORY by the limits of this process's control group (version 2) and those above it. */
static void apply_cgroups(struct backend_memory *memory)
{
	char text[PROC_FILE_MAX / 2], *group, *end;

	if (!read_file("/proc/self/cgroup", text, sizeof text))
		return;
	group = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
	if (!group)
		return;
	group = strchr(group, '/');
	if (!group)
		return;
	group[strcspn(group, "\n")] = '\0';
	for (unsigned depth = 0; depth < CGROUP_DEPTH_MAX; depth++) {
		uint64_t limit, used;

		if (cgroup_value(group, "memory.max", &limit) && limit < memory->total) {
			memory->total = limit;
			if (cgroup_value(group, "memory.current", &used)) {
				uint64_t left = used < limit ? limit - used : 0;
				memory->available = left < memory->available ? left : memory->available;
			}
		}
		end = strrchr(group, '/');
		if (!end || *group == '\0')
			return;
		*end = '\0';
	}
}

enum status cpu_memory_read(struct backend_memory *ret)
{
	char                  text[PROC_FILE_MAX];
	struct backend_memory memory;

	if (!read_file("/proc/meminfo", text, sizeof text) || !meminfo_bytes(text, "MemTotal:", &memory.total) ||
	    !meminfo_bytes(text, "MemAvailable:", &memory.available))
		return STATUS_IO;
	apply_cgroups(&memory);
	*ret = memory;
	return STATUS_OK;
}
