// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/ctmap/percluster"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// clusters brings sets of maps of clusters up to date: new ones are opened, those
// that have gone or were replaced are closed. What cannot be opened is not in what
// it returns, which is so next to an error too.
func (o *opener) clusters(dir string, sets []*set) (now []*set, err error) {
	there, err := openClusters(dir)
	if err != nil {
		return sets, err
	}
	known := map[string]*set{}
	for _, s := range sets {
		known[s.name] = s
	}
	var errs []error
	for _, c := range there {
		name := fmt.Sprintf("cluster-%d", c.ID)
		if s := known[name]; s != nil && maps.Equal(s.ids, idsOf(c)) {
			delete(known, name)
			now = append(now, s)
			errs = append(errs, c.Close())
			continue
		}
		s, err := o.cluster(name, c)
		if err != nil {
			errs = append(errs, err, c.Close())
			continue
		}
		now = append(now, s)
	}
	for _, s := range known {
		errs = append(errs, s.close())
	}
	return now, errors.Join(errs...)
}

// openClusters returns the maps of all clusters, none if there is nothing for
// them. What could be opened is returned next to an error.
func openClusters(dir string) (all []*percluster.Cluster, err error) {
	arrays, err := percluster.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ids, err := arrays.Clusters()
	errs := []error{err}
	for _, id := range ids {
		c, err := arrays.Get(id)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue // has gone meanwhile
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, c)
	}
	return all, errors.Join(append(errs, arrays.Close())...)
}

// cluster opens the set of a cluster.
func (o *opener) cluster(name string, c *percluster.Cluster) (*set, error) {
	s, err := o.open(name, gc.Extras{}, gc.Maps(c.Set()))
	if err != nil {
		return nil, fmt.Errorf("maps of %s: %w", name, err)
	}
	s.names, s.ids, s.release = map[string]string{}, idsOf(c), c.Close
	for global, array := range map[string]string{
		ctmap.CT4TCP: percluster.CT4TCP, ctmap.CT4Any: percluster.CT4Any,
		ctmap.CT6TCP: percluster.CT6TCP, ctmap.CT6Any: percluster.CT6Any,
		natmap.Name4: percluster.NAT4, natmap.Name6: percluster.NAT6,
	} {
		s.names[global] = fmt.Sprintf("%s/%d", array, c.ID)
	}
	return s, nil
}

// idsOf returns the kernel's numbers of the maps of a cluster.
func idsOf(c *percluster.Cluster) map[string]ebpf.MapID {
	ids := map[string]ebpf.MapID{}
	for _, m := range c.All() {
		info, err := m.Kernel().Info()
		if err != nil {
			continue
		}
		ids[m.Name()], _ = info.ID()
	}
	return ids
}
