/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Probes between nodes. An agent sends a probe over the overlay to a node; the programs of that
 * node answer it, whether or not its agent runs, and those of the first node note the nonce of a
 * right answer for its agent. A probe is an Ethernet frame with the proof of proof.h in its addresses,
 * a MAC of the nonce that follows the header:
 *
 *	destination	02, number of the key, first half of the MAC
 *	source		02, PROOF_PROBE or PROOF_ANSWER, second half of the MAC
 *	type		ETH_P_PROBE
 *	nonce		8 bytes, greater than those that the agent has sent before: an answer that
 *			is sent again, or overtaken by the next one, is dropped
 *
 * Packets of flows are signs of life too: see sluice_paths. */

#pragma once

#include "proof.h"

#define ETH_P_PROBE 0x88b5 /* IEEE 802: local experimental */
#define PROOF_PROBE 3	   /* beside enum direction and PROOF_UNSIGNED */
#define PROOF_ANSWER 4

struct probe {
	struct proof proof;
	__be16 protocol;
	__u64 nonce;
} __attribute__((packed));

/* Returns the MAC of a probe or an answer that goes from one node to another. Its last word
 * differs from that of any flow. */
SUBPROGRAM __u64 probe_mac(const struct probe *probe, const struct address *from,
			   const struct address *to, const struct overlay_key *key, __u32 kind)
{
	struct siphash s;
	bool ipv4;

	if (!probe || !from || !to || !key)
		return 0;
	ipv4 = is_ipv4(to);
	siphash_begin(&s, key);
	siphash_add(&s, probe->nonce);
	siphash_add_addresses(&s, from, to, ipv4);
	siphash_add(&s, (__u64)kind << 48 | (__u64)ipv4 << 56);
	return siphash_end(&s, 8 + (ipv4 ? 8 : 32) + 8);
}

/* Returns the key by which a probe or an answer is proven to come from a node, NULL if by none. */
static __always_inline const struct overlay_key *key_of_probe(const struct probe *probe,
							      const struct config_value *cfg,
							      const struct address *node)
{
	const struct overlay_keys_value *keys = overlay_keys();

	if (!keys || probe->proof.local != PROOF_LOCAL || probe->proof.local_too != PROOF_LOCAL)
		return NULL;
	for (__u32 i = 0; i < OVERLAY_KEYS; i++) {
		const struct overlay_key *key = &keys->keys[i];
		__u64 mac;

		if (i >= keys->count || key->number != probe->proof.key)
			continue;
		mac = probe_mac(probe, node, &cfg->underlay, key, probe->proof.direction);
		if (!__builtin_memcmp(probe->proof.first, &mac, 4) &&
		    !__builtin_memcmp(probe->proof.second, (__u8 *)&mac + 4, 4))
			return key;
	}
	return NULL;
}

/* Notes that a packet was sent to a node, or proven to come from it, if this node probes it. */
static __always_inline void note_path(const struct address *node, __u64 time, bool sent)
{
	struct path_value *path = bpf_map_lookup_elem(&sluice_paths, node);
	__u64 *noted;

	if (!path)
		return;
	noted = sent ? &path->sent : &path->seen;
	if (*noted != time) /* at most once a tick */
		*noted = time;
}

/* Takes a probe or an answer from a node. Returns 0 for a right answer; otherwise a verdict, or
 * a reason, negative, to drop it. */
SUBPROGRAM int take_probe(struct __sk_buff *ctx, const struct config_value *cfg,
			  const struct address *node)
{
	const struct overlay_key *key;
	struct path_value *path;
	struct probe probe;
	__u64 mac;

	if (!cfg || !node || bpf_skb_load_bytes(ctx, 0, &probe, sizeof(probe)))
		return -REASON_MALFORMED;
	key = key_of_probe(&probe, cfg, node);
	if (!key)
		return -REASON_OVERLAY_KEY;
	if (probe.proof.direction == PROOF_ANSWER) {
		path = bpf_map_lookup_elem(&sluice_paths, node);
		if (!path || probe.nonce <= path->nonces[(path->answers - 1) % PATH_NONCES])
			return -REASON_NO_RULE;
		path->answered = bpf_ktime_get_coarse_ns();
		path->nonces[__sync_fetch_and_add(&path->answers, 1) % PATH_NONCES] = probe.nonce;
		return 0;
	}
	if (probe.proof.direction != PROOF_PROBE)
		return -REASON_OVERLAY_KEY;
	probe.proof.direction = PROOF_ANSWER;
	mac = probe_mac(&probe, &cfg->underlay, node, key, PROOF_ANSWER);
	__builtin_memcpy(probe.proof.first, &mac, 4);
	__builtin_memcpy(probe.proof.second, (__u8 *)&mac + 4, 4);
	if (bpf_skb_store_bytes(ctx, 0, &probe.proof, sizeof(probe.proof), 0))
		return -REASON_WRITE_FAILED;
	return encapsulate(ctx, cfg, node);
}
