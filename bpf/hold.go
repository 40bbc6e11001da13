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

// heldFlags are those of a pod of which nothing is known.
const heldFlags = PodEgressUnknown | PodPolicyUnknown

// Holder holds new pods without an agent, by what the last one has pinned.
type Holder struct {
	linksDir string
	programs map[Program]*ebpf.Program
	pods     *ebpf.Map
}

// ErrNothingPinned says that no agent has run since the node booted, or not long
// enough: nothing could hold a pod.
var ErrNothingPinned = errors.New("no agent has pinned programs and maps")

// OpenHolder opens what agents have pinned in a BPF file system. It is an error that
// the programs use another map of pods than is pinned, as while agents of two
// versions change over: an entry would be one that nothing looks at.
func OpenHolder(bpffs string) (*Holder, error) {
	h := &Holder{linksDir: LinksDir(bpffs), programs: map[Program]*ebpf.Program{}}
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
	if h.pods, err = ebpf.LoadPinnedMap(filepath.Join(MapsDir(bpffs), podsMap), nil); err != nil {
		return fmt.Errorf("open map %s: %w", podsMap, err)
	}
	if h.pods.KeySize() != uint32(unsafe.Sizeof(PodKey{})) ||
		h.pods.ValueSize() != uint32(unsafe.Sizeof(PodValue{})) {
		return fmt.Errorf("open map %s: it has the layout of another version", podsMap)
	}
	info, err := h.pods.Info()
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

// Close lets go of programs and maps. What was attached stays.
func (h *Holder) Close() {
	for _, p := range h.programs {
		p.Close()
	}
	h.pods.Close()
}

// Hold has new flows of a pod dropped, as far as a policy could concern them: the
// programs run at its device, of the calling thread's network namespace, and then its
// addresses have entries. What an agent has done already stays as it is.
func (h *Holder) Hold(ifIndex int, mac net.HardwareAddr, addrs []netip.Addr) error {
	// Flows towards the pod are to be known before it answers them.
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
	for _, addr := range addrs {
		if err := h.put(PodKey{Addr: AddressFrom(addr)}, value); err != nil {
			return fmt.Errorf("hold %s: %w", addr, err)
		}
	}
	return nil
}

// put writes an entry, unless there is one of the same device. That of a former pod's
// goes first: an agent that writes an entry meanwhile knows more.
func (h *Holder) put(key PodKey, value PodValue) error {
	var is PodValue
	err := h.pods.Lookup(unsafe.Pointer(&key), unsafe.Pointer(&is))
	switch {
	case err == nil && is.IfIndex == value.IfIndex:
		return nil
	case err == nil:
		if err := h.pods.Delete(unsafe.Pointer(&key)); err != nil &&
			!errors.Is(err, ebpf.ErrKeyNotExist) {
			return mapError(err)
		}
	case !errors.Is(err, ebpf.ErrKeyNotExist):
		return mapError(err)
	}
	err = h.pods.Update(unsafe.Pointer(&key), unsafe.Pointer(&value), ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return mapError(err)
	}
	return nil
}
