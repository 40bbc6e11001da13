//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The garbage collection's programs: for each of the six maps of a set, and the two of
 * counts, an iterator, which the agent reads run by run, and a program for a single entry.
 * collect.h says what becomes of an entry, recount.h of a count, gc.h when a run of the
 * kernel ends. */

#include "collect.h"

/* Of the kernel's own types, as far as they are used here. */
struct bpf_map {
	__u32 id;
} __attribute__((preserve_access_index));

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
	void *value;
} __attribute__((preserve_access_index));

extern __s64 bpf_map_sum_elem_count(const struct bpf_map *map) __ksym;

/* The kernel goes on until something was written: the reader then has eight bytes,
 * which is all that it asks for. */
static __always_inline void pause_run(struct bpf_iter__bpf_map_elem *ctx)
{
	__u64 nothing = 0;

	run_end();
	bpf_seq_write(ctx->meta->seq, &nothing, sizeof(nothing));
}

/* The key of the entry that the program for a single entry looks at. The agent reads a
 * nearly empty map by batches: an iterator takes up to 12 ns for each empty bucket, at a
 * stretch, and a batch takes 1 ns. */
union {
	union any_key entry;
	struct share_key share;
	struct port_key ports;
} candidate ALIGNED;

#define COLLECTOR(map, collect, ...)                                                                                  \
	SEC("iter/bpf_map_elem") int gc_##map(struct bpf_iter__bpf_map_elem *ctx)                                      \
	{                                                                                                              \
		void *key = ctx->key, *value = ctx->value;                                                             \
                                                                                                                       \
		if (!key || !value) {                                                                                  \
			run_end();                                                                                     \
			return 0;                                                                                      \
		}                                                                                                      \
		run_begin();                                                                                           \
		collect(&sluice_##map, key, value, ##__VA_ARGS__);                                                     \
		if (run_over())                                                                                        \
			pause_run(ctx);                                                                                \
		return 0;                                                                                              \
	}                                                                                                              \
                                                                                                                       \
	SEC("syscall") int one_##map(void *ctx)                                                                        \
	{                                                                                                              \
		void *value = bpf_map_lookup_elem(&sluice_##map, &candidate);                                          \
                                                                                                                       \
		(void)ctx;                                                                                             \
		if (!value)                                                                                            \
			return 0;                                                                                      \
		run_begin();                                                                                           \
		collect(&sluice_##map, &candidate, value, ##__VA_ARGS__);                                              \
		run_end();                                                                                             \
		return 0;                                                                                              \
	}

COLLECTOR(ct4_tcp, collect_connection, false)
COLLECTOR(ct4_any, collect_connection, false)
COLLECTOR(ct6_tcp, collect_connection, true)
COLLECTOR(ct6_any, collect_connection, true)
COLLECTOR(nat4, collect_translation, false)
COLLECTOR(nat6, collect_translation, true)
COLLECTOR(shares, recount_share)
COLLECTOR(ports, recount_ports)

/* What count_entries found, in the order of the maps above. It also says in sluice_shares
 * what it found of all entries, as the kernel evicts some. */
struct gc_census {
	__u64 time; /* nanoseconds of CLOCK_MONOTONIC */
	__s64 entries[LIMITED_MAPS];
	__s64 shares;
	__s64 ports;
};

struct gc_census census;

SEC("syscall") int count_entries(void *ctx)
{
	(void)ctx;
	census.time = bpf_ktime_get_ns();
	census.entries[0] = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_ct4_tcp);
	census.entries[1] = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_ct4_any);
	census.entries[2] = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_ct6_tcp);
	census.entries[3] = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_ct6_any);
	census.entries[4] = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_nat4);
	census.entries[5] = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_nat6);
	census.shares = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_shares);
	census.ports = bpf_map_sum_elem_count((const struct bpf_map *)&sluice_ports);
	for (int i = 0; i < LIMITED_MAPS; i++) {
		struct share_key of_all = {.map = i};
		struct share_value *v = bpf_map_lookup_elem(&sluice_shares, &of_all);

		if (v)
			v->used = census.entries[i];
	}
	return 0;
}

const struct gc_event *event_type __attribute__((unused)); /* so that it is described in the object */

char LICENSE[] SEC("license") = "Dual BSD/GPL";
