/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The maps. Those that the agent writes are created by it, and put in the place
 * of what is declared here when the programs are loaded; the sizes of the others
 * are set then too. A map in slots is an array of two of them. */

#pragma once

#include "connections.h"
#include "event.h"
#include "kernel.h"

/* Key and value have sizes, not types, as clang leaves out types at this depth. */
#define IN_SLOTS(name, map_type, key_type, value_type)			\
	struct {							\
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);		\
		__uint(max_entries, SLOTS);				\
		__type(key, __u32);					\
		__array(						\
			values, struct {				\
				__uint(type, map_type);			\
				__uint(map_flags, BPF_F_NO_PREALLOC);	\
				__uint(max_entries, 1);			\
				__uint(key_size, sizeof(key_type));	\
				__uint(value_size, sizeof(value_type));	\
			});						\
	} name SEC(".maps")

/* Looks a key up in a map of a slot. A slot that is empty has no entries. */
#define in_slot(map, slot, key)							\
	({									\
		__u32 index_of_slot = slot;					\
		void *map_of_slot = bpf_map_lookup_elem(&map, &index_of_slot);	\
										\
		map_of_slot ? bpf_map_lookup_elem(map_of_slot, key) : NULL;	\
	})

IN_SLOTS(sluice_pods, BPF_MAP_TYPE_HASH, struct pod_key, struct pod_value);
IN_SLOTS(sluice_ipcache, BPF_MAP_TYPE_LPM_TRIE, struct prefix_key, struct ipcache_value);
IN_SLOTS(sluice_services, BPF_MAP_TYPE_HASH, struct frontend_key, struct frontend_value);
IN_SLOTS(sluice_subjects, BPF_MAP_TYPE_HASH, struct subject_key, struct subject_value);
IN_SLOTS(sluice_routes, BPF_MAP_TYPE_HASH, struct subject_key, struct route_value);
IN_SLOTS(sluice_peers, BPF_MAP_TYPE_HASH, struct peer_key, struct peer_value);
IN_SLOTS(sluice_egress, BPF_MAP_TYPE_LPM_TRIE, struct egress_key, struct egress_value);
IN_SLOTS(sluice_gateways, BPF_MAP_TYPE_HASH, struct gateway_key, struct gateway_value);
IN_SLOTS(sluice_policy, BPF_MAP_TYPE_HASH, struct policy_key, struct policy_value);
IN_SLOTS(sluice_verdicts, BPF_MAP_TYPE_LPM_TRIE, struct verdict_key, struct verdict_value);

/* Of addresses, prefixes and devices alone, whose meaning never changes: there is one of each. */
#define WRITTEN_BY_AGENT(name, map_type, key_type, value_type)	\
	struct {						\
		__uint(type, map_type);				\
		__uint(map_flags, BPF_F_NO_PREALLOC);		\
		__uint(max_entries, 1);				\
		__type(key, key_type);				\
		__type(value, value_type);			\
	} name SEC(".maps")

WRITTEN_BY_AGENT(sluice_exits, BPF_MAP_TYPE_HASH, struct exit_key, struct exit_value);
WRITTEN_BY_AGENT(sluice_blocks, BPF_MAP_TYPE_HASH, struct exit_key, struct block_value);
WRITTEN_BY_AGENT(sluice_owners, BPF_MAP_TYPE_HASH, struct owner_key, struct owner_value);
WRITTEN_BY_AGENT(sluice_limits, BPF_MAP_TYPE_HASH, struct limit_key, struct limit_value);
WRITTEN_BY_AGENT(sluice_covered, BPF_MAP_TYPE_LPM_TRIE, struct prefix_key, struct covered_value);
WRITTEN_BY_AGENT(sluice_devices, BPF_MAP_TYPE_HASH, struct device_key, struct device_value);
WRITTEN_BY_AGENT(sluice_nodes, BPF_MAP_TYPE_HASH, struct node_key, struct node_value);

/* Not an array: a packet must not see half of one key and half of another. */
WRITTEN_BY_AGENT(sluice_keys, BPF_MAP_TYPE_HASH, __u32, struct overlay_keys_value);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state_value);
} sluice_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config_value);
} sluice_config SEC(".maps");

#define WRITTEN_BY_PACKETS(name, key_type, value_type)	\
	struct {					\
		__uint(type, BPF_MAP_TYPE_LRU_HASH);	\
		__uint(max_entries, 1024);		\
		__uint(pinning, LIBBPF_PIN_BY_NAME);	\
		__type(key, key_type);			\
		__type(value, value_type);		\
	} name SEC(".maps")

WRITTEN_BY_PACKETS(sluice_ct4_tcp, struct tuple4_key, struct ct_entry);
WRITTEN_BY_PACKETS(sluice_ct4_any, struct tuple4_key, struct ct_entry);
WRITTEN_BY_PACKETS(sluice_ct6_tcp, struct tuple6_key, struct ct_entry);
WRITTEN_BY_PACKETS(sluice_ct6_any, struct tuple6_key, struct ct_entry);
WRITTEN_BY_PACKETS(sluice_nat4, struct tuple4_key, struct nat4_entry);
WRITTEN_BY_PACKETS(sluice_nat6, struct tuple6_key, struct nat6_entry);
/* Counts must not be evicted. If there is no room for one, there is no limit to what it
 * would count. */
#define COUNTED_BY_PACKETS(name, entries, key_type)	\
	struct {					\
		__uint(type, BPF_MAP_TYPE_HASH);	\
		__uint(map_flags, BPF_F_NO_PREALLOC);	\
		__uint(max_entries, entries);		\
		__uint(pinning, LIBBPF_PIN_BY_NAME);	\
		__type(key, key_type);			\
		__type(value, struct share_value);	\
	} name SEC(".maps")

COUNTED_BY_PACKETS(sluice_shares, 65536, struct share_key);
COUNTED_BY_PACKETS(sluice_ports, 1024, struct port_key);

/* The agent adds entries and removes them; packets update them. */
#define UPDATED_BY_PACKETS(name, entries, key_type, value_type)	\
	struct {						\
		__uint(type, BPF_MAP_TYPE_HASH);		\
		__uint(map_flags, BPF_F_NO_PREALLOC);		\
		__uint(max_entries, entries);			\
		__uint(pinning, LIBBPF_PIN_BY_NAME);		\
		__type(key, key_type);				\
		__type(value, value_type);			\
	} name SEC(".maps")

UPDATED_BY_PACKETS(sluice_paths, 16384, struct node_key, struct path_value);
UPDATED_BY_PACKETS(sluice_votes, 1024, struct exit_key, struct votes_value);
UPDATED_BY_PACKETS(sluice_told, 8192, struct exit_key, struct told_value);
UPDATED_BY_PACKETS(sluice_voters, 1, __u32, struct voters_value); /* by the agent only */

WRITTEN_BY_PACKETS(sluice_frag4, struct frag4_key, struct frag_value);
WRITTEN_BY_PACKETS(sluice_frag6, struct frag6_key, struct frag_value);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_COUNT * DIRECTIONS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct metric);
} sluice_metrics SEC(".maps");

/* A rule gets a counter, or slot, when it first decides; the agent removes the counters of
 * rules that no longer exist. Slots are found without a search, which would slow down
 * packets of known flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RULE_SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u32); /* the cookie, 0 if the slot is free */
} sluice_ruleslot SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, RULE_SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct metric);
} sluice_rulehits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct rule_key);
	__type(value, struct metric);
} sluice_rules SEC(".maps");

/* The agent removes the counters of policies that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TRAFFIC_COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct traffic_key);
	__type(value, struct traffic_value);
} sluice_traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TRAFFIC_COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct traffic_owner);
} sluice_trafown SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRAFFIC_COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct traffic_count);
} sluice_trafhits SEC(".maps");

/* A bucket that is evicted is an empty one again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LIMIT_BUCKETS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct bucket_key);
	__type(value, struct bucket_value);
} sluice_buckets SEC(".maps");

/* The time when the present tick began, of each CPU: see time_of_tick. */
struct clock {
	__u64 jiffies;
	__u64 time;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct clock);
} sluice_clock SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sluice_events SEC(".maps");

/* Of the least size unless there is a ledger. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sluice_ledger SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LEDGER_READER + 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u64);
} sluice_missing SEC(".maps");
