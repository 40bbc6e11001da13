// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/hive/cell"
)

// Datapath is what reports events, once it has started.
type Datapath interface {
	// Loaded reports whether there are programs.
	Loaded() bool
	// Events returns the ring buffer that the programs write to.
	Events() *ebpf.Map
	// Map returns a map of the programs by its name, nil if there is none.
	Map(name string) *ebpf.Map
}

// Time between attempts to read the ring buffer.
const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// reader reads the ring buffer.
type reader struct {
	datapath Datapath
	source   *Source
}

// run reads until the context ends.
func (r *reader) run(ctx context.Context, health cell.Health) error {
	if !r.datapath.Loaded() {
		health.OK("No programs are loaded: there are no events")
		<-ctx.Done()
		return nil
	}
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := r.read(ctx, health)
		if ctx.Err() != nil {
			return nil
		}
		health.Degraded("Events cannot be read: drops are counted in the metrics only", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// read reads until it fails or the context ends.
func (r *reader) read(ctx context.Context, health cell.Health) error {
	ring := r.datapath.Events()
	if ring == nil {
		return errors.New("open sluice_events: there is no such map")
	}
	rd, err := ringbuf.NewReader(ring)
	if err != nil {
		return fmt.Errorf("open sluice_events: %w", err)
	}
	defer rd.Close()
	stop := context.AfterFunc(ctx, func() { rd.Close() }) // interrupts the wait for a record
	defer stop()
	health.OK("Reading events")
	for record := new(ringbuf.Record); ; {
		if err := rd.ReadInto(record); err != nil {
			return fmt.Errorf("read sluice_events: %w", err)
		}
		r.source.record(record.RawSample)
	}
}
