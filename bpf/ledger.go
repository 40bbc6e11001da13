// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Names of the maps of the ledger (programs/ledger.h).
const (
	LedgerMap  = "sluice_ledger"  // ring buffer of [LedgerRecord]
	MissingMap = "sluice_missing" // how many records did not fit, see [LedgerMissed]
)

// LedgerOn is the constant of programs by which they write a ledger.
const LedgerOn = "ledger_on"

// Indexes of sluice_missing.
const (
	LedgerMissed uint32 = iota // records that did not fit, counted by the programs
	LedgerTold                 // how many of them the agent has written down as missing
	LedgerReader               // a [LedgerReading], and above its byte the records in hand
)

// LedgerReading says what became of the agent that read a ledger.
type LedgerReading uint64

// The values of sluice_missing under [LedgerReader].
const (
	LedgerUnread      LedgerReading = iota // no agent has read it yet
	LedgerBeingRead                        // an agent reads it, or was killed
	LedgerReadCleanly                      // an agent has written all that it had read
)

// LedgerEvent says what a [LedgerRecord] is of.
type LedgerEvent uint8

// The events. All but the first are ends.
const (
	LedgerBegin     LedgerEvent = 1 + iota
	LedgerExpired               // the connection has ended, or was silent for its lifetime
	LedgerOrphan                // its connection is not known any more
	LedgerReleased              // the pod, or the egress address, is gone
	LedgerFlushed               // all connections were to go
	LedgerCondemned             // a removal that had not been finished
	LedgerReused                // the connection had ended, and another one takes the port
	LedgerRenewed               // the flow begins anew, or its egress address has moved away
	LedgerUndone                // was never used
)

var ledgerEvents = [...]string{
	"", "begin", "expired", "orphan", "released", "flushed", "condemned", "reused", "renewed", "undone",
}

func (e LedgerEvent) String() string {
	if int(e) < len(ledgerEvents) && e > 0 {
		return ledgerEvents[e]
	}
	return fmt.Sprintf("event-%d", uint8(e))
}

// LedgerRecord says that a pod has an egress address and port towards a destination, or has it
// no more. Ports are in network order.
type LedgerRecord struct {
	Time       uint64  // nanoseconds of CLOCK_MONOTONIC
	Began      uint64  // the same, of the begin that an end is of
	Missing    uint32  // records that had not fitted by then, modulo 2^32
	Used       uint32  // of an end: when a packet last used it, seconds of CLOCK_MONOTONIC
	Pod        Address // or of the host, if it is its own connection
	Egress     Address
	Remote     Address
	PodPort    [2]byte // of ICMP the identifier, as the egress port; the remote port is 0
	EgressPort [2]byte
	RemotePort [2]byte
	Protocol   uint8 // as in the IP header
	Event      LedgerEvent
}

// LedgerRecordBytes is what a record takes in the ring buffer.
const LedgerRecordBytes = 8 + int(unsafe.Sizeof(LedgerRecord{}))

// DecodeLedger returns the record of a sample of the ring buffer.
func DecodeLedger(sample []byte) (r LedgerRecord, err error) {
	if len(sample) != int(unsafe.Sizeof(r)) {
		return r, fmt.Errorf("decode record of the ledger: %d bytes, want %d",
			len(sample), unsafe.Sizeof(r))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&r)), len(sample)), sample)
	if r.Event < LedgerBegin || r.Event > LedgerUndone {
		return r, fmt.Errorf("decode record of the ledger: unknown event %d", r.Event)
	}
	return r, nil
}

// Ledger are the maps of a ledger that is on.
type Ledger struct {
	Records, Missing *ebpf.Map
	NAT4, NAT6       *ebpf.Map // of translations, which the kernel evicts without a record
}

// Missed returns how many records did not fit, and how many of them were told.
func (l *Ledger) Missed() (missed, told uint64, err error) {
	if missed, err = l.get(LedgerMissed); err != nil {
		return 0, 0, err
	}
	told, err = l.get(LedgerTold)
	return missed, told, err
}

// Tell notes how many missing records were told: it outlives the agent.
func (l *Ledger) Tell(told uint64) error { return l.set(LedgerTold, told) }

const readingBits = 8

// Reading returns what the last agent has noted with SetReading.
func (l *Ledger) Reading() (r LedgerReading, inHand uint64, err error) {
	value, err := l.get(LedgerReader)
	return LedgerReading(value & (1<<readingBits - 1)), value >> readingBits, err
}

// SetReading notes what becomes of the agent, and how many records at most it takes from the
// buffer without having written them: so many are lost if it is killed.
func (l *Ledger) SetReading(r LedgerReading, inHand uint64) error {
	return l.set(LedgerReader, inHand<<readingBits|uint64(r))
}

func (l *Ledger) get(index uint32) (value uint64, err error) {
	if err := l.Missing.Lookup(index, &value); err != nil {
		return 0, fmt.Errorf("read map %s: %w", MissingMap, err)
	}
	return value, nil
}

func (l *Ledger) set(index uint32, value uint64) error {
	if err := l.Missing.Put(index, value); err != nil {
		return fmt.Errorf("write map %s: %w", MissingMap, err)
	}
	return nil
}
