// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
)

// Cell provides the [Datapath] and loads it when the agent starts, after the
// agent's maps are open.
var Cell = cell.Module(
	"datapath",
	"Programs in the kernel",

	cell.Config(DefaultConfig),
	cell.Provide(provide),
)

// Config says how large the maps are that the programs write.
type Config struct {
	MapSizeCTTCP     uint32 `mapstructure:"map-size-ct-tcp"`
	MapSizeCTAny     uint32 `mapstructure:"map-size-ct-any"`
	MapSizeNAT       uint32 `mapstructure:"map-size-nat"`
	MapSizeFragments uint32
	EventsBuffer     uint32
}

// DefaultConfig has the sizes of the reference.
var DefaultConfig = Config{
	MapSizeCTTCP:     524288,
	MapSizeCTAny:     262144,
	MapSizeNAT:       524288,
	MapSizeFragments: 8192,
	EventsBuffer:     1 << 20,
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Uint32("map-size-ct-tcp", c.MapSizeCTTCP, "Room for TCP connections, of each family")
	flags.Uint32("map-size-ct-any", c.MapSizeCTAny, "Room for other connections, of each family")
	flags.Uint32("map-size-nat", c.MapSizeNAT, "Room for entries of translations, two each, of each family")
	flags.Uint32("map-size-fragments", c.MapSizeFragments, "Room for datagrams that come in fragments, of each family")
	flags.Uint32("events-buffer", c.EventsBuffer, "Buffer of events in bytes: a power of two")
}

const (
	maxMapSize      = 1 << 26
	maxEventsBuffer = 1 << 30
)

func (c Config) validate() error {
	for flag, size := range map[string]uint32{
		"map-size-ct-tcp": c.MapSizeCTTCP, "map-size-ct-any": c.MapSizeCTAny,
		"map-size-nat": c.MapSizeNAT, "map-size-fragments": c.MapSizeFragments,
	} {
		if size < 1 || size > maxMapSize {
			return fmt.Errorf("--%s %d is out of bounds: want 1 to %d", flag, size, maxMapSize)
		}
	}
	page := uint32(os.Getpagesize())
	if n := c.EventsBuffer; n < page || n > maxEventsBuffer || n&(n-1) != 0 {
		return fmt.Errorf("--events-buffer %d: want a power of two from %d to %d bytes", n, page, maxEventsBuffer)
	}
	return nil
}

func (c Config) sizes() Sizes {
	return Sizes{
		CTTCP: c.MapSizeCTTCP, CTAny: c.MapSizeCTAny, NAT: c.MapSizeNAT,
		Fragments: c.MapSizeFragments, Events: c.EventsBuffer,
	}
}

// LedgerBuffer is the size of the ring buffer of a ledger in bytes, a power of two of at least
// a page; 0: there is no ledger.
type LedgerBuffer uint32

type params struct {
	cell.In

	Config    Config
	Maps      *bpf.Maps
	Ledger    LedgerBuffer `optional:"true"`
	Lifecycle cell.Lifecycle
	Log       *slog.Logger
}

func provide(p params) (*Datapath, error) {
	if err := p.Config.validate(); err != nil {
		return nil, err
	}
	d := &Datapath{}
	sizes := p.Config.sizes()
	sizes.Ledger = uint32(p.Ledger)
	p.Lifecycle.Append(cell.Hook{
		OnStart: func(cell.HookContext) error {
			kernel, ok := p.Maps.Backend().(*bpf.Kernel)
			if !ok {
				return nil
			}
			return d.load(Options{Maps: p.Maps.Kernel(), Dir: kernel.Dir(), Sizes: sizes, Log: p.Log})
		},
		OnStop: func(cell.HookContext) error { return d.Close() },
	})
	return d, nil
}
