// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-net/sluice/bpf"
)

// bpfMap is what is known of a pinned map.
type bpfMap struct {
	Pin        string `json:"pin"`
	ID         uint32 `json:"id"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	KeySize    uint32 `json:"keySize"`
	ValueSize  uint32 `json:"valueSize"`
	MaxEntries uint32 `json:"maxEntries"`
	Flags      uint32 `json:"flags"`
	Memlock    uint64 `json:"memlock"` // bytes
	Frozen     bool   `json:"frozen,omitempty"`
}

// bpfLink is what is known of a pinned link, and of the program that it attaches.
type bpfLink struct {
	Pin     string      `json:"pin"`
	ID      uint32      `json:"id"`
	Type    string      `json:"type"`
	IfIndex uint32      `json:"ifIndex,omitempty"`
	Attach  string      `json:"attach,omitempty"`
	Program *bpfProgram `json:"program,omitempty"`
}

type bpfProgram struct {
	ID     uint32   `json:"id"`
	Name   string   `json:"name"`
	Type   string   `json:"type"`
	Tag    string   `json:"tag"`
	Insns  int      `json:"instructions,omitempty"`
	Jited  int      `json:"jitedBytes,omitempty"`
	Loaded string   `json:"loadedSinceBoot,omitempty"`
	MapIDs []uint32 `json:"mapIDs,omitempty"`
}

// Kernel adds the BPF maps, programs and links that are pinned in a BPF file
// system, which is for root.
func Kernel(a *Archive, bpffs string) {
	a.JSON("kernel/maps.json", func() (any, error) { return pinnedMaps(bpf.MapsDir(bpffs)) })
	a.JSON("kernel/links.json", func() (any, error) { return pinnedLinks(bpf.LinksDir(bpffs)) })
}

// pinned calls load with each pin below a directory, and returns what it found,
// also beside errors.
func pinned[T any](dir string, load func(path string) (T, error)) (list []T, errs error) {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		}
		x, err := load(path)
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("%s: %w", path, err))
			return nil
		}
		list = append(list, x)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", bpf.ErrNoPins, err)
	}
	return list, errors.Join(errs, err)
}

func pinnedMaps(dir string) (any, error) {
	links := bpf.LinksDir(filepath.Dir(dir))
	maps, err := pinned(dir, func(path string) (*bpfMap, error) {
		if filepath.Dir(path) == links {
			return nil, nil
		}
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			return nil, err
		}
		id, _ := info.ID()
		memlock, _ := info.Memlock()
		return &bpfMap{
			Pin: path, ID: uint32(id), Name: info.Name, Type: info.Type.String(), KeySize: info.KeySize, ValueSize: info.ValueSize,
			MaxEntries: info.MaxEntries, Flags: info.Flags, Memlock: memlock, Frozen: info.Frozen(),
		}, nil
	})
	return nonEmpty(slices.DeleteFunc(maps, func(m *bpfMap) bool { return m == nil })), err
}

func pinnedLinks(dir string) (any, error) {
	links, err := pinned(dir, func(path string) (*bpfLink, error) {
		l, err := link.LoadPinnedLink(path, &ebpf.LoadPinOptions{})
		if err != nil {
			return nil, err
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return nil, err
		}
		found := &bpfLink{Pin: path, ID: uint32(info.ID), Type: fmt.Sprint(info.Type)}
		if tcx := info.TCX(); tcx != nil {
			found.IfIndex, found.Attach = tcx.Ifindex, fmt.Sprint(ebpf.AttachType(tcx.AttachType))
		}
		found.Program, err = describeProgram(info.Program)
		return found, err
	})
	return nonEmpty(links), err
}

func describeProgram(id ebpf.ProgramID) (*bpfProgram, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("describe program %d: %w", id, err)
	}
	found := &bpfProgram{ID: uint32(id), Name: info.Name, Type: info.Type.String(), Tag: info.Tag}
	if size, err := info.TranslatedSize(); err == nil {
		found.Insns = size / 8
	}
	if size, err := info.JitedSize(); err == nil {
		found.Jited = int(size)
	}
	if since, ok := info.LoadTime(); ok {
		found.Loaded = since.String()
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		found.MapIDs = append(found.MapIDs, uint32(id))
	}
	slices.SortFunc(found.MapIDs, cmp.Compare[uint32])
	return found, nil
}

// nonEmpty returns nil for a list that has nothing, so that there is no file.
func nonEmpty[T any](list []T) any {
	if len(list) == 0 {
		return nil
	}
	return list
}
