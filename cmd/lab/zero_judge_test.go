// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hearing compares the sources with which a listener has heard a speaker with those that
// policies give.
type hearing struct {
	what    string // listener and speaker
	heard   map[netip.Addr]int
	allowed []netip.Addr // none if policies forbid it
}

// hearings are what the peers hear of a pod, and the pod of the peers.
func (z *zero) hearings(p *zeroPod) (all []hearing) {
	own := []netip.Addr{p.IPv4, p.IPv6}
	for _, peer := range z.peers {
		h := hearing{
			what: peer.name + " of " + p.Name, heard: peer.sources(p.talker.word), allowed: own,
		}
		switch {
		case p.kind == "closed":
			h.allowed = nil
		case peer.Namespace == z.World.Namespace:
			h.allowed = z.sourcesInWorld(p)
		}
		all = append(all, h)
	}
	h := hearing{what: p.Name + " of peers", heard: p.talker.sources(zeroPeerWord)}
	if p.kind != "closed" {
		h.allowed = z.speakers
	}
	return append(all, h)
}

// sourcesInWorld are the addresses with which a pod is to reach the world.
func (z *zero) sourcesInWorld(p *zeroPod) []netip.Addr {
	switch p.kind {
	case "gated":
		return []netip.Addr{z.far.EgressIPv4, z.node.EgressIPv6}
	case "swapped":
		return []netip.Addr{z.node.EgressIPv4, z.far.EgressIPv6}
	}
	return []netip.Addr{z.node.OutsideIPv4, z.node.OutsideIPv6}
}

// missing returns an error unless every allowed source was heard.
func (h hearing) missing() error {
	for _, addr := range h.allowed {
		if h.heard[addr] == 0 {
			return fmt.Errorf("%s: nothing from %s: %v", h.what, addr, h.heard)
		}
	}
	return nil
}

// awaitAnswers waits until the node has reached each of its pods, which no policy forbids.
func (z *zero) awaitAnswers(pods []*zeroPod) {
	z.t.Helper()
	z.eventually("the node reaches its pods", func() error {
		for _, p := range pods {
			h := hearing{
				what:    "the asking node of " + p.Name,
				heard:   z.asks.sources(zeroAnswer + p.talker.word),
				allowed: []netip.Addr{p.IPv4, p.IPv6},
			}
			if err := h.missing(); err != nil {
				return err
			}
		}
		return nil
	})
}

// awaitAllowed waits until everything has been heard that policies allow: otherwise a test
// in which no packet passes would succeed.
func (z *zero) awaitAllowed(pods []*zeroPod) {
	z.t.Helper()
	z.awaitAnswers(pods)
	z.eventually("everything allowed is heard", func() error {
		for _, p := range pods {
			for _, h := range z.hearings(p) {
				if err := h.missing(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// assertHeld asserts that pods that no agent knows are held, and that their node reaches
// them nevertheless.
func (z *zero) assertHeld(pods []*zeroPod) {
	z.t.Helper()
	z.awaitAnswers(pods)
	for _, p := range pods {
		for _, h := range z.hearings(p) {
			assert.Empty(z.t, h.heard, "%s, which is held", h.what)
		}
		assert.False(z.t, p.connected.Load(), "%s is held, and has connected", p.Name)
	}
	require.False(z.t, z.t.Failed())
}

// judge counts what was heard that policies forbid, or with another source than they give.
func (z *zero) judge(pods []*zeroPod) {
	z.t.Helper()
	for _, p := range pods {
		for _, h := range z.hearings(p) {
			for source, n := range h.heard {
				switch {
				case len(h.allowed) == 0:
					z.forbidden += uint64(n)
				case !slices.Contains(h.allowed, source):
					z.wrongSource += uint64(n)
				default:
					continue
				}
				z.t.Errorf("%s: %d datagrams from %s, allowed are %v", h.what, n, source, h.allowed)
			}
		}
	}
}

// times are how long something took, pod by pod.
type times []time.Duration

func (d times) String() string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	at := func(percent int) time.Duration {
		return d[(len(d)-1)*percent/100].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("median %s, p90 %s, p99 %s, slowest %s", at(50), at(90), at(99), at(100))
}

// zeroCount counts pods, and datagrams.
type zeroCount struct {
	started                             int
	sent, heard, forbidden, wrongSource uint64
}

func (c *zeroCount) addTalker(k *talker) {
	c.add(zeroCount{sent: k.sent.Load(), heard: k.heard.Load()})
}

func (c *zeroCount) add(o zeroCount) {
	c.started += o.started
	c.sent += o.sent
	c.heard += o.heard
	c.forbidden += o.forbidden
	c.wrongSource += o.wrongSource
}

func (c zeroCount) String() string {
	return fmt.Sprintf("%d pods, %d datagrams sent, %d heard, forbidden: %d, wrong source: %d",
		c.started, c.sent, c.heard, c.forbidden, c.wrongSource)
}
