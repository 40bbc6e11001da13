// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/ctmap/percluster"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// mapSet are the maps of this cluster, or of another one.
type mapSet struct {
	connections  []ctmap.Map
	translations []natmap.Map
}

// openMaps are the pinned maps, and the time of their clock.
type openMaps struct {
	sets []mapSet // the global one first
	now  uint32   // seconds
}

// openPinned opens the pinned maps that there are.
func openPinned(bpffs string) (*openMaps, error) {
	dir, p := bpf.MapsDir(bpffs), &openMaps{}
	err := p.open(dir)
	if err == nil && len(p.sets) == 0 {
		err = fmt.Errorf("no maps are pinned in %s, --bpffs chooses another place: %w", dir, bpf.ErrNoPins)
	}
	if err == nil {
		p.now, err = gc.Now()
	}
	if err != nil {
		p.close()
		return nil, mapsError(err)
	}
	return p, nil
}

func (p *openMaps) open(dir string) (err error) {
	var global mapSet
	if global.connections, err = ctmap.OpenAll(dir); err != nil {
		return err
	}
	p.sets = append(p.sets, global)
	if p.sets[0].translations, err = natmap.OpenAll(dir); err != nil {
		return err
	}
	if len(p.sets[0].all()) == 0 {
		p.sets = nil
		return nil
	}
	arrays, err := percluster.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer arrays.Close()
	ids, err := arrays.Clusters()
	if err != nil {
		return err
	}
	for _, id := range ids {
		cluster, err := arrays.Get(id)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue // has gone meanwhile
		} else if err != nil {
			return err
		}
		p.sets = append(p.sets, mapSet{cluster.Connections, cluster.Translations})
	}
	return nil
}

func (p *openMaps) close() {
	for _, s := range p.sets {
		for _, m := range s.all() {
			m.Close()
		}
	}
}

// connections returns the maps of connections of all sets.
func (p *openMaps) connections() (maps []ctmap.Map) {
	for _, s := range p.sets {
		maps = append(maps, s.connections...)
	}
	return maps
}

// translations returns the maps of translations of all sets.
func (p *openMaps) translations() (maps []natmap.Map) {
	for _, s := range p.sets {
		maps = append(maps, s.translations...)
	}
	return maps
}

// count returns the numbers of entries by the kernel's counters, by names of maps.
func (p *openMaps) count() (map[string]int, error) {
	all := map[string]int{}
	for _, s := range p.sets {
		counts, err := gc.Count(s.maps())
		if err != nil {
			return nil, err
		}
		for name, n := range counts.Entries {
			all[s.name(name)] = n
		}
	}
	return all, nil
}

func (s mapSet) all() (maps []ctmap.Any) {
	for _, m := range s.connections {
		maps = append(maps, m)
	}
	for _, m := range s.translations {
		maps = append(maps, m)
	}
	return maps
}

// maps returns the set as package gc has it.
func (s mapSet) maps() (maps gc.Maps) {
	for _, m := range s.all() {
		*fieldOf(&maps, kindOf(m)) = m.Kernel()
	}
	return maps
}

// name returns the name of the map that package gc has a name of the global maps for.
func (s mapSet) name(global string) string {
	for _, m := range s.all() {
		if kindOf(m) == global {
			return m.Name()
		}
	}
	return global
}

// kindOf returns the name of the global map that a map is like.
func kindOf(m ctmap.Any) string {
	array, _, _ := strings.Cut(m.Name(), "/") // and the number of the cluster
	switch array {
	case percluster.CT4TCP:
		return ctmap.CT4TCP
	case percluster.CT4Any:
		return ctmap.CT4Any
	case percluster.CT6TCP:
		return ctmap.CT6TCP
	case percluster.CT6Any:
		return ctmap.CT6Any
	case percluster.NAT4:
		return natmap.Name4
	case percluster.NAT6:
		return natmap.Name6
	}
	return m.Name()
}

func fieldOf(maps *gc.Maps, kind string) **ebpf.Map {
	return map[string]**ebpf.Map{
		ctmap.CT4TCP: &maps.CT4TCP, ctmap.CT4Any: &maps.CT4Any, ctmap.CT6TCP: &maps.CT6TCP, ctmap.CT6Any: &maps.CT6Any,
		natmap.Name4: &maps.NAT4, natmap.Name6: &maps.NAT6,
	}[kind]
}

// mapsError is an error of pinned maps. One that root would not get says so.
func mapsError(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("the maps of the kernel are for root: %w", err)
	}
	return err
}
