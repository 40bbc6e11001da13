// SPDX-License-Identifier: Apache-2.0

package gctest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// Numbers of the gateway's program.
const (
	ClockAhead = 2       // seconds that the collection's clock is to be ahead of Options.Now
	NowMin     = 1 << 21 // seconds that Options.Now is at least, as what has expired did so at any time before
	FlowsMax   = 8192    // flows that a gateway can have
)

// Options say what a gateway does.
type Options struct {
	Maps       map[string]*ebpf.Map // of connections and translations, by their names
	Now        uint32               // its clock, which stands still, seconds: at least [NowMin]
	Flows      uint32               // how many it has, a power of two
	Family     uint16               // of the flows: 4 or 6
	Protocol   uint8                // of the flows
	Translates bool                 // the flows are translated
	Evicts     bool                 // it deletes entries too, as the kernel does when a map is full
	NotesOnly  bool                 // it makes no connections, but only refreshes those that there are
}

// Counts say what a gateway has done, and seen.
type Counts = gatewayGatewayCounts

// Gateway uses connections and translations.
type Gateway struct {
	*ebpf.Collection
	setup gatewayGatewaySetup
}

// NewGateway loads the programs of a gateway.
func NewGateway(o Options) (*Gateway, error) {
	if o.Now < NowMin {
		return nil, fmt.Errorf("time of %d s: want at least %d", o.Now, NowMin)
	}
	spec, err := loadGateway()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if replacement := o.Maps[name]; replacement != nil {
			m.MaxEntries = replacement.MaxEntries()
		} else if strings.HasPrefix(name, "sluice_") && !uses(name) {
			delete(spec.Maps, name)
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: o.Maps})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	g := &Gateway{c, gatewayGatewaySetup{Now: uint64(o.Now), Flows: o.Flows, Family: o.Family, Protocol: uint16(o.Protocol)}}
	for i, wanted := range []bool{o.Translates, o.Evicts, o.NotesOnly} {
		if wanted {
			g.setup.Flags |= 1 << i
		}
	}
	return g, nil
}

// uses reports whether the gateway uses a map of the agent.
func uses(name string) bool {
	return strings.HasPrefix(name, "sluice_ct") || strings.HasPrefix(name, "sluice_nat") ||
		name == bpf.SharesMap || name == bpf.PortsMap || name == bpf.LedgerMap || name == bpf.MissingMap
}

func (g *Gateway) run(program string) error {
	if err := g.Variables["setup"].Set(g.setup); err != nil {
		return fmt.Errorf("write what the gateway does: %w", err)
	}
	result, err := g.Programs[program].Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err == nil && result != 0 {
		err = fmt.Errorf("result %d", int32(result))
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}

// Step makes that many steps with random flows, each of which uses one or lets it
// grow old.
func (g *Gateway) Step(steps uint32) error {
	g.setup.Steps = steps
	return g.run("step_flows")
}

// Pulse begins to interrupt this CPU, so long after each time, to make so many steps.
func (g *Gateway) Pulse(period time.Duration, steps uint32) error {
	g.setup.Steps, g.setup.Period = steps, uint32(period)
	return g.run("start_pulse")
}

// StopPulse ends that.
func (g *Gateway) StopPulse() error {
	g.setup.Period = 0
	if err := g.Variables["setup"].Set(g.setup); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var stopped uint32
		if err := g.Variables["stopped"].Get(&stopped); err != nil || stopped != 0 {
			return err
		}
	}
	return errors.New("stop interruptions: they go on")
}

// Check counts as lost what is not there any more of what was promised.
func (g *Gateway) Check() error { return g.run("check_flows") }

// Counts returns what the gateway has done since it was loaded.
func (g *Gateway) Counts() (c Counts, err error) {
	if err := g.Variables["counted"].Get(&c); err != nil {
		return c, fmt.Errorf("read what the gateway has done: %w", err)
	}
	return c, nil
}
