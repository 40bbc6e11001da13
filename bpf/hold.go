// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

// podsMap is the name of the map of this node's pods.
const podsMap = "sluice_pods"

// heldFlags are those of a pod of which nothing is known: it has no subject either.
const heldFlags = PodLocal

// Holder holds new pods while there is no agent, with what the last agent has pinned.
type Holder struct {
	mapsDir  string
	linksDir string
	programs map[Program]*ebpf.Program
}

// ErrNothingPinned says that no agent has run since the node booted, or not long
// enough: nothing could hold a pod.
var ErrNothingPinned = errors.New("no agent has pinned programs and maps")

// OpenHolder opens what agents have pinned in a BPF file system. It is an error that
// the programs use another map of pods than is pinned, as while agents of two
// versions change over: an entry would be one that nothing looks at.
func OpenHolder(bpffs string) (*Holder, error) {
	h := &Holder{
		mapsDir: MapsDir(bpffs), linksDir: LinksDir(bpffs), programs: map[Program]*ebpf.Program{},
	}
	if err := h.open(bpffs); err != nil {
		h.Close()
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrNothingPinned
		}
		return nil, err
	}
	return h, nil
}

func (h *Holder) open(bpffs string) (err error) {
	slots, pods, _, err := openActiveSlot(h.mapsDir, podsMap)
	if err != nil {
		return err
	}
	defer slots.Close()
	defer pods.Close()
	if pods.KeySize() != uint32(unsafe.Sizeof(PodKey{})) ||
		pods.ValueSize() != uint32(unsafe.Sizeof(PodValue{})) {
		return fmt.Errorf("open map %s: it has the layout of another version", podsMap)
	}
	info, err := slots.Info()
	if err != nil {
		return fmt.Errorf("look at map %s: %w", podsMap, err)
	}
	id, _ := info.ID()
	for _, p := range PinnedPrograms {
		program, err := ebpf.LoadPinnedProgram(filepath.Join(ProgramsDir(bpffs), p.String()), nil)
		if err != nil {
			return fmt.Errorf("open program %s: %w", p, err)
		}
		h.programs[p] = program
		of, err := program.Info()
		if err != nil {
			return fmt.Errorf("look at program %s: %w", p, err)
		}
		if maps, _ := of.MapIDs(); !slices.Contains(maps, id) {
			return fmt.Errorf("program %s does not use the map %s that is pinned", p, podsMap)
		}
	}
	return nil
}

// Close closes programs and maps. What was attached stays.
func (h *Holder) Close() {
	for _, p := range h.programs {
		p.Close()
	}
}

// Hold has new flows of a pod dropped, as far as a policy could concern them: the
// programs run at its device, of the calling thread's network namespace, and then its
// addresses have entries. What an agent has done already stays as it is.
func (h *Holder) Hold(ifIndex int, mac net.HardwareAddr, addrs []netip.Addr) error {
	// Flows towards the pod must be known before it answers them.
	for _, p := range []Program{ProgramToPod, ProgramFromPod} {
		l, err := LoadDeviceLink(h.linksDir, ifIndex, p)
		if err != nil {
			return err
		}
		if l != nil {
			l.Close()
			continue
		}
		_, err = AttachDevice(h.linksDir, ifIndex, p, h.programs[p])
		if err != nil && !errors.Is(err, ErrAttached) { // by an agent
			return err
		}
	}
	value := PodValue{IfIndex: uint32(ifIndex), Flags: heldFlags}
	copy(value.MAC[:], mac)
	for {
		slot, err := h.putAll(addrs, value)
		if err != nil {
			return err
		}
		// An agent that starts may not know of the pod yet.
		if now, err := readActiveSlot(h.mapsDir); err != nil || now == slot {
			return err
		}
	}
}

// putAll writes the entries of addresses, and returns the slot that they are in.
func (h *Holder) putAll(addrs []netip.Addr, value PodValue) (uint32, error) {
	slots, pods, slot, err := openActiveSlot(h.mapsDir, podsMap)
	if err != nil {
		return 0, err
	}
	defer slots.Close()
	defer pods.Close()
	for _, addr := range addrs {
		if err := putPod(pods, PodKey{Addr: AddressFrom(addr)}, value); err != nil {
			return 0, fmt.Errorf("hold %s: %w", addr, err)
		}
	}
	return slot, nil
}

// putPod writes an entry, unless there is one of the same device. That of a former pod's
// goes first: an agent that writes an entry meanwhile knows more.
func putPod(pods *ebpf.Map, key PodKey, value PodValue) error {
	var is PodValue
	err := pods.Lookup(unsafe.Pointer(&key), unsafe.Pointer(&is))
	switch {
	case err == nil && is.IfIndex == value.IfIndex:
		return nil
	case err == nil:
		if err := pods.Delete(unsafe.Pointer(&key)); err != nil &&
			!errors.Is(err, ebpf.ErrKeyNotExist) {
			return mapError(err)
		}
	case !errors.Is(err, ebpf.ErrKeyNotExist):
		return mapError(err)
	}
	err = pods.Update(unsafe.Pointer(&key), unsafe.Pointer(&value), ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return mapError(err)
	}
	return nil
}
