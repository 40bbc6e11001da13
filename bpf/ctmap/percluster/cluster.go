// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// Set are the maps of a cluster. It converts to gc.Maps.
type Set struct {
	CT4TCP, CT4Any, CT6TCP, CT6Any *ebpf.Map
	NAT4, NAT6                     *ebpf.Map
}

// Cluster are the maps of a cluster, open. They can be used until they are
// closed, also when they have been deleted meanwhile.
type Cluster struct {
	ID           uint32
	Connections  []ctmap.Map  // as many as exist, in the order of [Names]
	Translations []natmap.Map // the same

	set Set
}

// Get opens the maps of a cluster. The error is [ebpf.ErrKeyNotExist] if it has
// none; those that could not be created are missing.
func (m *Maps) Get(id uint32) (*Cluster, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Cluster{ID: id}
	for i := range kinds {
		inner, err := m.inner(i, id)
		if err == nil && inner != nil {
			err = c.add(i, inner)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map %s: open of cluster %d: %w", kinds[i].name, id, err), c.Close())
		}
	}
	if len(c.Connections)+len(c.Translations) == 0 {
		return nil, fmt.Errorf("maps of cluster %d: %w", id, ebpf.ErrKeyNotExist)
	}
	return c, nil
}

// add adds a map, whose name is that of the array with the number of the cluster.
func (c *Cluster) add(i int, inner *ebpf.Map) error {
	name := fmt.Sprintf("%s/%d", kinds[i].name, c.ID)
	*[...]**ebpf.Map{&c.set.CT4TCP, &c.set.CT4Any, &c.set.CT6TCP, &c.set.CT6Any, &c.set.NAT4, &c.set.NAT6}[i] = inner
	if i < 4 {
		m, err := ctmap.NewNamed(name, kinds[i].like, inner)
		if err != nil {
			return errors.Join(err, inner.Close())
		}
		c.Connections = append(c.Connections, m)
		return nil
	}
	m, err := natmap.NewNamed(name, kinds[i].like, inner)
	if err != nil {
		return errors.Join(err, inner.Close())
	}
	c.Translations = append(c.Translations, m)
	return nil
}

// Set returns the maps themselves, nil where there is none. They stay the
// cluster's: they must not be closed.
func (c *Cluster) Set() Set { return c.set }

// All returns all maps, connections first.
func (c *Cluster) All() []ctmap.Any {
	var all []ctmap.Any
	for _, m := range c.Connections {
		all = append(all, m)
	}
	for _, m := range c.Translations {
		all = append(all, m)
	}
	return all
}

// Close closes the maps. They stay, unless they have been deleted.
func (c *Cluster) Close() error {
	var errs []error
	for _, m := range c.All() {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
