// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// now returns the time of votes, in nanoseconds of CLOCK_BOOTTIME: it goes on while the machine
// sleeps.
func now() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // there always is this clock
	}
	return uint64(now.Nano())
}

// kernelEntries are the maps in which the programs note votes.
type kernelEntries struct{ Datapath }

func (e kernelEntries) votes() *ebpf.Map  { return e.Map(bpf.VotesMap) }
func (e kernelEntries) voters() *ebpf.Map { return e.Map(bpf.VotersMap) }

func keyOf(addr netip.Addr) bpf.ExitKey { return bpf.ExitKey{Addr: bpf.AddressFrom(addr)} }

// addrsOf returns the addresses that a map has entries of.
func addrsOf(m *ebpf.Map) (addrs []netip.Addr, err error) {
	var key bpf.ExitKey
	var value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		addrs = append(addrs, key.Addr.Addr())
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", m, err)
	}
	return addrs, nil
}

// votesFor returns the entry of an address that this node may have.
func (e kernelEntries) votesFor(addr netip.Addr) (v bpf.VotesValue, err error) {
	if err := e.votes().Lookup(keyOf(addr), &v); err != nil {
		return v, fmt.Errorf("read %s in %s: %w", addr, bpf.VotesMap, err)
	}
	return v, nil
}

// told returns which node has told that it has an address.
func (e kernelEntries) told(addr netip.Addr) (v bpf.ToldValue, err error) {
	if err := e.Map(bpf.ToldMap).Lookup(keyOf(addr), &v); err != nil {
		return v, fmt.Errorf("read %s in %s: %w", addr, bpf.ToldMap, err)
	}
	return v, nil
}

// expect has the programs note which node tells that it has an address.
func (e kernelEntries) expect(addr netip.Addr) error {
	err := e.Map(bpf.ToldMap).Update(keyOf(addr), bpf.ToldValue{}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("add %s to %s: %w", addr, bpf.ToldMap, err)
	}
	return nil
}

// expectNoMore is the contrary of [kernelEntries.expect].
func (e kernelEntries) expectNoMore(addr netip.Addr) error {
	err := e.Map(bpf.ToldMap).Delete(keyOf(addr))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove %s from %s: %w", addr, bpf.ToldMap, err)
	}
	return nil
}

// put writes the entry of an address. Votes that come in the meantime are lost, or replaced by
// those before, which run out sooner.
func (e kernelEntries) put(addr netip.Addr, v bpf.VotesValue) error {
	// In place: a program that notes a vote in an entry that was replaced could write to another
	// address's by then.
	flags := ebpf.UpdateExist | ebpf.UpdateLock
	err := e.votes().Update(keyOf(addr), v, flags)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = e.votes().Update(keyOf(addr), v, ebpf.UpdateNoExist)
	}
	if err != nil {
		return fmt.Errorf("write %s to %s: %w", addr, bpf.VotesMap, err)
	}
	return nil
}

func (e kernelEntries) remove(addr netip.Addr) error {
	err := e.votes().Delete(keyOf(addr))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove %s from %s: %w", addr, bpf.VotesMap, err)
	}
	return nil
}

// readVoters returns who votes, as the programs know it: of a former agent after a start. Without
// an entry it makes up the clock of a new one.
func (e kernelEntries) readVoters() (v bpf.VotersValue, err error) {
	err = e.voters().Lookup(uint32(0), &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		var random [8]byte
		_, err = rand.Read(random[:])
		v.Clock = binary.NativeEndian.Uint64(random[:])
	}
	if err != nil {
		return v, fmt.Errorf("read %s: %w", bpf.VotersMap, err)
	}
	return v, nil
}

func (e kernelEntries) writeVoters(v bpf.VotersValue) error {
	if err := e.voters().Put(uint32(0), v); err != nil {
		return fmt.Errorf("write %s: %w", bpf.VotersMap, err)
	}
	return nil
}

// clockOf returns what a node has answered to votes last. A node that is not probed has no entry
// for its answers.
func (e kernelEntries) clockOf(node netip.Addr) (clock, nonce uint64, err error) {
	var v bpf.PathValue
	err = e.Map(bpf.PathsMap).Lookup(bpf.NodeKey{Addr: bpf.AddressFrom(node)}, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, 0, fmt.Errorf("votes for node %s do not count: it is not probed", node)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read %s in %s: %w", node, bpf.PathsMap, err)
	}
	return v.Clock, v.ClockNonce, nil
}
