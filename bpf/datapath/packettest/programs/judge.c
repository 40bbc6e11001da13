//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Asks the datapath's own code what network policies say of many packets at once:
 * with system calls for each, a million would take minutes. */

#include "../../../programs/policy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define QUESTIONS 65536

struct question {
	struct address saddr;
	struct address daddr;
	__be16 sport;
	__be16 dport;
	__u8 protocol;
	__u8 icmp_type;
	__u8 direction;
	__u8 how; /* beside it, of enum judge_how, and QUESTION_BACKEND */
};

/* The destination is what a service led to. */
#define QUESTION_BACKEND (1 << 4)

struct answer {
	__u32 reason;
	__u32 cookie;
	__u32 postponed; /* until it is known where a service leads */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, QUESTIONS);
	__type(key, __u32);
	__type(value, struct question);
} questions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, QUESTIONS);
	__type(key, __u32);
	__type(value, struct answer);
} answers SEC(".maps");

volatile __u32 asked; /* how many questions there are */

/* The packet of a question, as parse leaves it. */
static __always_inline void packet_of(struct packet *p, const struct question *q)
{
	p->flow.family = is_ipv4(&q->saddr) ? FAMILY_IPV4 : FAMILY_IPV6;
	p->flow.saddr = q->saddr;
	p->flow.daddr = q->daddr;
	p->flow.sport = q->sport;
	p->flow.dport = q->dport;
	p->flow.protocol = q->protocol;
	p->header_protocol = q->protocol;
	p->icmp_type = q->icmp_type;
	p->source = q->saddr;
	p->shape = SHAPE_WHOLE;
}

static long answer_one(__u32 index, void *unused)
{
	const struct question *q = bpf_map_lookup_elem(&questions, &index);
	struct answer *a = bpf_map_lookup_elem(&answers, &index);
	const struct pod_value *pod;
	struct decision d = {};
	struct packet p = {};

	(void)unused;
	if (!q || !a)
		return 1;
	look_at_state(&d);
	packet_of(&p, q);
	pod = local_pod(q->direction == DIRECTION_EGRESS ? &p.flow.saddr : &p.flow.daddr, d.slot);
	if (!pod)
		a->reason = REASON_UNKNOWN_SOURCE;
	else if (q->how & QUESTION_BACKEND)
		a->reason = is_subject(pod, &d) ? judge_peer(&p, pod, &d, q->direction, NULL) : 0;
	else
		a->reason = allowed(&p, pod, &d, q->direction | q->how);
	a->cookie = d.cookie;
	a->postponed = d.leads == LEADS_ON;
	return 0;
}

SEC("tcx/ingress")
int answer_all(struct __sk_buff *ctx)
{
	(void)ctx;
	bpf_loop(asked, answer_one, NULL, 0);
	return TCX_NEXT;
}
