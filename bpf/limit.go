// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"time"
)

// LimitsMap is the name of the map of egress policies with limits of bandwidth, and BucketsMap that
// of what has passed of their traffic.
const (
	LimitsMap  = "sluice_limits"
	BucketsMap = "sluice_buckets"
)

const (
	// LimitEntries is how many egress policies with limits the kernel has room for.
	LimitEntries = 16384

	// LimitBuckets is for how many policies, and pods of policies with a limit for each, a gateway
	// knows what has passed, in each direction. Those unused for longest are forgotten first.
	LimitBuckets = 16384

	// LimitBurst is how much may pass at once after a pause, as time at the rate: enough for the
	// bursts of TCP in a data center, and short against the second that a rate is of.
	LimitBurst = 100 * time.Millisecond

	// LimitQueue is how many packets may wait for their departure, with [ConfigPaced]: fewer than
	// the 100 of a flow for which fq has room by default. Shorter ones than LimitPacket bytes count
	// as that long: they have to pass beside those.
	LimitQueue  = 64
	LimitPacket = 1500

	// LimitWait is how long they may wait: well within the 10 seconds beyond which fq drops packets
	// by default.
	LimitWait = 2 * time.Second
)

// LimitKey is the key of sluice_limits.
type LimitKey struct {
	Policy uint32 // see [PolicyCookie]
}

func (k LimitKey) String() string { return fmt.Sprintf("policy=%#x", k.Policy) }

// LimitValue is the value of sluice_limits: bytes a second on one gateway, in each direction by
// itself; 0 is no limit.
type LimitValue struct {
	Rate    uint64 // of all traffic of the policy
	PodRate uint64 // of each pod's
}

func (v LimitValue) String() string { return fmt.Sprintf("rate=%d pod-rate=%d", v.Rate, v.PodRate) }

// BucketKey is the key of sluice_buckets.
type BucketKey struct {
	Pod       Address // zero: all of the policy's traffic
	Policy    uint32
	Direction uint32 // [DirectionEgress] or [DirectionIngress]
}

// BucketValue is the value of sluice_buckets.
type BucketValue struct {
	// Time is when what has passed would have, at the rate: nanoseconds of CLOCK_MONOTONIC.
	Time uint64
}
