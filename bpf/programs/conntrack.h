/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the host's own connection tracking knows: where it has translated a flow to.
 * If that is a module which was not loaded before the programs, it is not known. */

#pragma once

#include "packet.h"

#define CONNTRACK_REPLIES 1	    /* IP_CT_DIR_REPLY */
#define CONNTRACK_TRANSLATED (1UL << 5) /* IPS_DST_NAT */

union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));

union nf_conntrack_man_proto {
	__be16 all;
} __attribute__((preserve_access_index));

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
} __attribute__((preserve_access_index));

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *ctx, struct bpf_sock_tuple *tuple, __u32 tuple__sz,
					 struct bpf_ct_opts *opts, __u32 opts__sz) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/* Makes the destination of a flow, in its original direction, that to which the host
 * translates it. Returns whether the host knows the flow; it knows TCP and UDP. */
static __noinline int translated_by_host(struct __sk_buff *ctx, struct tuple *t)
{
	struct bpf_ct_opts opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = t->protocol};
	struct bpf_sock_tuple key = {};
	struct nf_conn *connection;
	__u32 size;

	if (!bpf_skb_ct_lookup || !bpf_ct_release)
		return false;
	if (t->family == FAMILY_IPV4) {
		key.ipv4.saddr = t->saddr.words[3];
		key.ipv4.daddr = t->daddr.words[3];
		key.ipv4.sport = t->sport;
		key.ipv4.dport = t->dport;
		size = sizeof(key.ipv4);
	} else {
		__builtin_memcpy(key.ipv6.saddr, &t->saddr, sizeof(key.ipv6.saddr));
		__builtin_memcpy(key.ipv6.daddr, &t->daddr, sizeof(key.ipv6.daddr));
		key.ipv6.sport = t->sport;
		key.ipv6.dport = t->dport;
		size = sizeof(key.ipv6);
	}
	connection = bpf_skb_ct_lookup(ctx, &key, size, &opts, sizeof(opts));
	if (!connection)
		return false;
	if (t->family == FAMILY_IPV4)
		t->daddr = mapped(connection->tuplehash[CONNTRACK_REPLIES].tuple.src.u3.all[0]);
	else
		for (int i = 0; i < 4; i++)
			t->daddr.words[i] = connection->tuplehash[CONNTRACK_REPLIES].tuple.src.u3.all[i];
	t->dport = connection->tuplehash[CONNTRACK_REPLIES].tuple.src.u.all;
	bpf_ct_release(connection);
	return true;
}
