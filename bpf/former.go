// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

// formerSources is a map of the previous layout with the pods that its agent routed.
const formerSources = "sluice_sources"

// FormerPods returns the addresses of pods that the agent before had on its node, or was the
// gateway of: those that the active slot had when the maps were opened, or if that was
// empty, those that the maps of the layout before had.
func (m *Maps) FormerPods() []netip.Addr { return m.formerPods }

func readFormerPods(backend Backend, slot uint32) ([]netip.Addr, error) {
	pods, err := addrsIn(backend, slotPath(slot, podsMap))
	if err != nil || len(pods) > 0 {
		return pods, err
	}
	for _, name := range []string{podsMap, formerSources} {
		addrs, err := addrsIn(backend, name)
		if err != nil {
			return nil, err
		}
		pods = append(pods, addrs...)
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return slices.Compact(pods), nil
}

// addrsIn returns the keys of a map of pods, whatever its values are; none if there is no
// such map.
func addrsIn(backend Backend, path string) ([]netip.Addr, error) {
	switch backend := backend.(type) {
	case *Kernel:
		return backend.addrsIn(path)
	case *Memory:
		return backend.addrsIn(path)
	}
	return nil, nil
}

func (k *Kernel) addrsIn(name string) (addrs []netip.Addr, err error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(k.Dir(), name),
		&ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", name, err)
	}
	defer m.Close()
	if m.KeySize() != uint32(unsafe.Sizeof(PodKey{})) {
		return nil, nil
	}
	var (
		key   PodKey
		value []byte
	)
	it := m.Iterate()
	for it.Next(&key, &value) {
		addrs = append(addrs, key.Addr.Addr())
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	return addrs, nil
}

func (m *Memory) addrsIn(name string) (addrs []netip.Addr, err error) {
	m.mu.Lock()
	pods, found := m.maps[path.Clean(name)].(*memoryMap[PodKey, PodValue])
	m.mu.Unlock()
	if !found {
		return nil, nil
	}
	entries, err := pods.Dump()
	for _, e := range entries {
		addrs = append(addrs, e.Key.Addr.Addr())
	}
	return addrs, err
}
