/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The ledger: which pod has an egress address and port towards a destination, from when to when.
 * A pod has it as long as there is the record for its replies (IN in translation.h). So what
 * inserts such a record tells the ledger that it begins, and what removes one that it ends. That
 * the kernel evicts one from a full map, no program sees: the agent finds it missing
 * (reconcilers/ledger/open.go).
 *
 * An end may be written after the next begin with the same port: it names the time of its begin.
 * Nothing wakes the agent, as that takes longer than to write a record: it looks often. */

#pragma once

#include "ct.h"

/* Constant when programs are loaded: if it is false the verifier removes the rest. */
const volatile bool ledger_on = false;

const struct ledger_record *ledger_record_type __attribute__((unused)); /* described in the object */

/* Reserves a record of what replies come to. If there is no room it is counted as missing. */
static __always_inline struct ledger_record *ledger_reserve(const struct tuple *replies,
							    const struct address *pod,
							    __be16 pod_port, __u8 event)
{
	struct ledger_record *r = bpf_ringbuf_reserve(&sluice_ledger, sizeof(*r), 0);
	__u32 index = LEDGER_MISSED;
	__u64 *missing = bpf_map_lookup_elem(&sluice_missing, &index);

	if (!r) {
		if (missing)
			__sync_fetch_and_add(missing, 1);
		return NULL;
	}
	r->time = bpf_ktime_get_ns();
	r->missing = missing ? *(volatile __u64 *)missing : 0;
	r->pod = *pod;
	r->egress = replies->daddr;
	r->remote = replies->saddr;
	r->pod_port = pod_port;
	r->egress_port = replies->dport;
	r->remote_port = replies->sport;
	r->protocol = replies->protocol;
	r->event = event;
	return r;
}

/* Says that the address and port that replies come to belong to a pod now. */
static __always_inline void ledger_begin(const struct tuple *replies,
					 const struct address *pod, __be16 port,
					 __u64 created)
{
	struct ledger_record *r = ledger_reserve(replies, pod, port, LEDGER_BEGIN);

	if (!r)
		return;
	r->began = created;
	r->used = 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}
