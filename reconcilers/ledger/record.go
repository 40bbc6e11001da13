// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Event says what a [Record] is of.
type Event string

// The events.
const (
	Begin   Event = "begin"   // the pod has the address and port towards the destination from now on
	End     Event = "end"     // it has them no more
	Missing Event = "missing" // so many records are missing here
	Start   Event = "start"   // an agent begins to write the ledger
	Clock   Event = "clock"   // the node's clock was set: times before are by the former one
)

// BeginFound is the reason of a [Begin] that the agent has found in the kernel's maps, as the
// record of it is missing: it may have been of before there was a ledger. Others have none.
const BeginFound = "found"

// Reasons of a [Start]: what is known of what was before.
const (
	StartNew     = "new"     // the kernel's buffer is new: what was before has no end here
	StartStopped = "stopped" // the agent before this one had stopped: nothing is missing
	StartKilled  = "killed"  // it had not: what it had read, but not written yet, is missing. Its
	// Count is how many records that are at most. Translations that go on are found again.
)

// Reasons of a [Missing].
const (
	MissingBuffer  = "buffer"  // the kernel's buffer was full
	MissingOutput  = "output"  // this output could not be written
	MissingVersion = "version" // they were of programs of another version, which this one cannot read
)

// Reasons of an end that the kernel does not record. Others are names of a [bpf.LedgerEvent].
const (
	EndEvicted = "evicted" // the kernel has evicted it from a full map
	EndUnknown = "unknown" // its end is among missing records, or of when no agent was running
)

// Record is a line of the ledger.
type Record struct {
	Time   time.Time `json:"time"`
	Event  Event     `json:"event"`
	Reason string    `json:"reason,omitempty"` // of a begin only if it was found

	// ID is the same in the begin and the end of a translation, and another in the next one of
	// the same address, port and destination.
	ID uint64 `json:"id,omitempty"`

	// The pod, empty if it is not known; and its address, or that of the host if it is the
	// host's own connection. Ports of ICMP are identifiers.
	Namespace  string         `json:"namespace,omitempty"`
	Pod        string         `json:"pod,omitempty"`
	Node       string         `json:"node,omitempty"` // of the pod, or the host itself
	PodAddress netip.AddrPort `json:"podAddress,omitzero"`

	Protocol    string         `json:"protocol,omitempty"`
	Egress      netip.AddrPort `json:"egress,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`

	Began    time.Time `json:"began,omitzero"`    // of an end
	LastUsed time.Time `json:"lastUsed,omitzero"` // of an end, exact to a second; zero: not known

	Count uint64 `json:"count,omitempty"` // of a missing, and of a start: at most
	Step  string `json:"step,omitempty"`  // of a clock: by which duration it was set forward
}

// clock converts moments of CLOCK_MONOTONIC to times of day, by the clock as it is set now.
type clock struct {
	now       time.Time
	monotonic int64
}

func newClock() (c clock) {
	for range clockTries {
		c.monotonic = monotonicNow()
		c.now = time.Now().Round(0).UTC()
		if monotonicNow()-c.monotonic < int64(clockExact) {
			break
		}
	}
	return c
}

const (
	clockTries = 10                     // until the process is not interrupted between both clocks
	clockExact = 100 * time.Microsecond // by which they may differ then
	clockStep  = 100 * time.Millisecond // a clock that is only adjusted does less from read to read
)

// monotonicNow returns nanoseconds of CLOCK_MONOTONIC.
func monotonicNow() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // cannot be, as all kernels have this clock
	}
	return now.Nano()
}

func (c clock) at(monotonic uint64) time.Time {
	return c.now.Add(time.Duration(int64(monotonic) - c.monotonic))
}

// step returns by how much the clock was set forward since another reading of it.
func (c clock) step(before clock) time.Duration {
	return c.now.Sub(before.now) - time.Duration(c.monotonic-before.monotonic)
}

// recordOf returns the line of a record of the kernel, without names.
func recordOf(raw *bpf.LedgerRecord, c clock) Record {
	if raw.Event != bpf.LedgerBegin {
		return endOf(raw, raw.Event.String(), c)
	}
	return lineOf(raw, Begin, c)
}

// endOf returns the line of an end.
func endOf(raw *bpf.LedgerRecord, reason string, c clock) Record {
	r := lineOf(raw, End, c)
	r.Reason = reason
	r.Began = c.at(raw.Began)
	if raw.Used != 0 {
		r.LastUsed = c.at(uint64(raw.Used) * uint64(time.Second))
	}
	return r
}

func lineOf(raw *bpf.LedgerRecord, event Event, c clock) Record {
	return Record{
		Time: c.at(raw.Time), Event: event, ID: raw.Began,
		PodAddress:  addrPort(raw.Pod, raw.PodPort),
		Protocol:    tables.ProtocolName(raw.Protocol),
		Egress:      addrPort(raw.Egress, raw.EgressPort),
		Destination: addrPort(raw.Remote, raw.RemotePort),
	}
}

func addrPort(a bpf.Address, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), binary.BigEndian.Uint16(port[:]))
}

func (r *Record) setPod(owner owner) {
	r.Namespace, r.Pod, r.Node = owner.Namespace, owner.Name.Name, owner.node
}

// owner is what has an address.
type owner struct {
	tables.Name
	node string
}
