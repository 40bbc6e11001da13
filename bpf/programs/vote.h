/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Messages about egress addresses that move, over the overlay, as probes are. The programs note
 * them whether or not the agent runs.
 *
 * Votes: a node tells another one which addresses it shall have, again and again. The answer is the
 * time here, with the nonce of the votes, which is greater than any before. The voter sends that
 * time back with its next votes: they are valid for a term from that time on. So they run out here
 * before the voter, which counts the term from when it got the answer, votes for another node,
 * however long packets are on their way.
 *
 * Owners: a node tells all others which addresses it has, so that they send there. */

#pragma once

#include "lease.h"
#include "probe.h"

#define PROOF_VOTES 5	/* beside PROOF_PROBE */
#define PROOF_CLOCK 6	/* the answer */
#define PROOF_OWNER 7	/* as votes, of which only nonce, count and addresses are used */
#define VOTES_IN_FRAME 64
#define MAX_TERM (10 * (__u64)SECOND)

struct votes_frame {
	struct proof proof;
	__be16 protocol;
	__u64 nonce;
	__u64 clock; /* the time here, of the last answer; 0: there was none */
	__u64 term;  /* nanoseconds */
	__u32 set;   /* number of the set of voters that they are of */
	__u32 count; /* of the addresses that follow */
} __attribute__((packed));

struct clock_frame {
	struct proof proof;
	__be16 protocol;
	__u64 nonce; /* of the votes */
	__u64 clock;
} __attribute__((packed));

/* Reads the address at a place in a frame of votes. */
static __always_inline long vote_at(struct __sk_buff *ctx, __u32 place, struct address *addr)
{
	return bpf_skb_load_bytes(ctx, sizeof(struct votes_frame) + place * sizeof(*addr), addr,
				  sizeof(*addr));
}

/* Returns the MAC of a frame of votes, or of an owner, 0 if it is malformed. */
SUBPROGRAM __u64 votes_mac(struct __sk_buff *ctx, const struct votes_frame *votes,
			   const struct address *from, const struct address *to,
			   const struct overlay_key *key)
{
	struct address addr;
	struct siphash s;
	bool ipv4;

	if (!votes || !from || !to || !key || votes->count > VOTES_IN_FRAME)
		return 0;
	ipv4 = is_ipv4(to);
	siphash_begin(&s, key);
	siphash_add(&s, votes->nonce);
	siphash_add(&s, votes->clock);
	siphash_add(&s, votes->term);
	siphash_add(&s, votes->set | (__u64)votes->count << 32);
	for (__u32 i = 0; i < VOTES_IN_FRAME && i < votes->count; i++) {
		if (vote_at(ctx, i, &addr))
			return 0;
		siphash_add(&s, addr.halves[0]);
		siphash_add(&s, addr.halves[1]);
	}
	siphash_add_addresses(&s, from, to, ipv4);
	siphash_add(&s, (__u64)votes->proof.direction << 48 | (__u64)ipv4 << 56);
	return siphash_end(&s, 32 + votes->count * sizeof(addr) + (ipv4 ? 8 : 32) + 8);
}

/* Returns the MAC of the answer to votes. */
SUBPROGRAM __u64 clock_mac(const struct clock_frame *answer, const struct address *from,
			   const struct address *to, const struct overlay_key *key)
{
	struct siphash s;
	bool ipv4;

	if (!answer || !from || !to || !key)
		return 0;
	ipv4 = is_ipv4(to);
	siphash_begin(&s, key);
	siphash_add(&s, answer->nonce);
	siphash_add(&s, answer->clock);
	siphash_add_addresses(&s, from, to, ipv4);
	siphash_add(&s, (__u64)PROOF_CLOCK << 48 | (__u64)ipv4 << 56);
	return siphash_end(&s, 16 + (ipv4 ? 8 : 32) + 8);
}

static __always_inline bool is_mac(const struct proof *proof, __u64 mac)
{
	return proof->local == PROOF_LOCAL && proof->local_too == PROOF_LOCAL &&
	       !__builtin_memcmp(proof->first, &mac, 4) &&
	       !__builtin_memcmp(proof->second, (__u8 *)&mac + 4, 4);
}

static __always_inline const struct overlay_key *
key_of_number(const struct overlay_keys_value *keys, __u8 number)
{
	for (__u32 i = 0; i < OVERLAY_KEYS; i++)
		if (i < keys->count && keys->keys[i].number == number)
			return &keys->keys[i];
	return NULL;
}

/* Notes the votes of a frame, if the node that sent them votes. */
SUBPROGRAM int note_votes(struct __sk_buff *ctx, const struct votes_frame *votes,
			  const struct address *node)
{
	const struct voters_value *voters = egress_voters();
	__u64 now = bpf_ktime_get_boot_ns();
	const struct voter_set *set;
	struct votes_value *v;
	struct address addr;
	struct vote *vote;
	__u64 age, until;
	__u32 place;

	if (!votes || !node || !voters)
		return 0;
	set = &voters->sets[votes->set % VOTER_SETS];
	if (set->number != votes->set)
		return 0;
	age = now + voters->clock - votes->clock;
	if (age >= votes->term || votes->term > MAX_TERM) /* age: also of the future, or a former boot */
		return 0;
	until = now - age + votes->term;
	for (place = 0; place < EGRESS_VOTERS; place++)
		if (same_address(&set->voters[place], node))
			break;
	if (place == EGRESS_VOTERS)
		return 0;
	for (__u32 i = 0; i < VOTES_IN_FRAME && i < votes->count; i++) {
		if (vote_at(ctx, i, &addr))
			break;
		v = votes_for(&addr);
		if (!v)
			continue;
		vote = &v->votes[votes->set % VOTER_SETS][place];
		if (vote->set == votes->set && vote->until >= until)
			continue;
		if (vote->set != votes->set) { /* it may be of another node, in a former set */
			*(volatile __u64 *)&vote->until = 0;
			asm volatile("" ::: "memory");
			*(volatile __u64 *)&vote->set = votes->set;
			asm volatile("" ::: "memory");
		}
		*(volatile __u64 *)&vote->until = until;
	}
	return 0;
}

/* Takes votes from a node, and answers. Returns a verdict, or a reason, negative, to drop them. */
SUBPROGRAM int take_votes(struct __sk_buff *ctx, const struct config_value *cfg,
			  const struct address *node)
{
	const struct overlay_keys_value *keys = overlay_keys();
	const struct overlay_key *key;
	struct clock_frame answer = {};
	struct votes_frame votes;
	const struct voters_value *voters;
	__u64 mac;

	if (!cfg || !node || !keys || bpf_skb_load_bytes(ctx, 0, &votes, sizeof(votes)))
		return -REASON_MALFORMED;
	if (votes.count > VOTES_IN_FRAME)
		return -REASON_MALFORMED;
	key = key_of_number(keys, votes.proof.key);
	if (!key || !is_mac(&votes.proof, votes_mac(ctx, &votes, node, &cfg->underlay, key)))
		return -REASON_OVERLAY_KEY;
	note_votes(ctx, &votes, node);
	voters = egress_voters();
	if (!voters)
		return -REASON_NO_RULE;
	answer.proof = votes.proof;
	answer.proof.direction = PROOF_CLOCK;
	answer.protocol = votes.protocol;
	answer.nonce = votes.nonce;
	answer.clock = bpf_ktime_get_boot_ns() + voters->clock;
	mac = clock_mac(&answer, &cfg->underlay, node, key);
	__builtin_memcpy(answer.proof.first, &mac, 4);
	__builtin_memcpy(answer.proof.second, (__u8 *)&mac + 4, 4);
	if (bpf_skb_change_tail(ctx, sizeof(answer), 0) ||
	    bpf_skb_store_bytes(ctx, 0, &answer, sizeof(answer), 0))
		return -REASON_WRITE_FAILED;
	return encapsulate(ctx, cfg, node);
}

/* Takes the time of a node, which has answered votes. Returns 0, or a reason, negative, to drop
 * it. */
SUBPROGRAM int take_clock(struct __sk_buff *ctx, const struct config_value *cfg,
			  const struct address *node)
{
	const struct overlay_keys_value *keys = overlay_keys();
	const struct overlay_key *key;
	struct clock_frame answer;
	struct path_value *path;

	if (!cfg || !node || !keys || bpf_skb_load_bytes(ctx, 0, &answer, sizeof(answer)))
		return -REASON_MALFORMED;
	key = key_of_number(keys, answer.proof.key);
	if (!key || !is_mac(&answer.proof, clock_mac(&answer, node, &cfg->underlay, key)))
		return -REASON_OVERLAY_KEY;
	path = bpf_map_lookup_elem(&sluice_paths, node);
	if (!path || answer.nonce <= path->clock_nonce) /* it was sent again, or is late */
		return -REASON_NO_RULE;
	path->clock = answer.clock;
	path->clock_nonce = answer.nonce;
	return 0;
}

/* Takes which addresses a node has. Returns 0, or a reason, negative, to drop it. */
SUBPROGRAM int take_owner(struct __sk_buff *ctx, const struct config_value *cfg,
			  const struct address *node)
{
	const struct overlay_keys_value *keys = overlay_keys();
	const struct overlay_key *key;
	struct votes_frame owner;
	struct path_value *path;
	struct told_value *told;
	struct address addr;

	if (!cfg || !node || !keys || bpf_skb_load_bytes(ctx, 0, &owner, sizeof(owner)))
		return -REASON_MALFORMED;
	if (owner.count > VOTES_IN_FRAME)
		return -REASON_MALFORMED;
	key = key_of_number(keys, owner.proof.key);
	if (!key || !is_mac(&owner.proof, votes_mac(ctx, &owner, node, &cfg->underlay, key)))
		return -REASON_OVERLAY_KEY;
	path = bpf_map_lookup_elem(&sluice_paths, node);
	if (!path || owner.nonce <= path->told) /* it was sent again, or is late */
		return -REASON_NO_RULE;
	path->told = owner.nonce;
	for (__u32 i = 0; i < VOTES_IN_FRAME && i < owner.count; i++) {
		if (vote_at(ctx, i, &addr))
			break;
		told = bpf_map_lookup_elem(&sluice_told, &addr);
		if (!told)
			continue;
		told->node = *node;
		told->at = bpf_ktime_get_boot_ns();
	}
	return 0;
}

/* Takes what agents send to each other. Returns a verdict, 0 for what the agent waits for, or a
 * reason, negative, to drop it. */
static __always_inline int take_message(struct __sk_buff *ctx, const struct config_value *cfg,
					const struct address *node)
{
	struct proof proof;

	if (bpf_skb_load_bytes(ctx, 0, &proof, sizeof(proof)))
		return -REASON_MALFORMED;
	switch (proof.direction) {
	case PROOF_VOTES:
		return take_votes(ctx, cfg, node);
	case PROOF_CLOCK:
		return take_clock(ctx, cfg, node);
	case PROOF_OWNER:
		return take_owner(ctx, cfg, node);
	}
	return take_probe(ctx, cfg, node);
}
