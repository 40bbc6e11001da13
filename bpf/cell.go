// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
)

// Cell provides the agent's [Maps] and opens them when it starts, in the back
// end that another module provides, or else in the one that --bpf selects.
var Cell = cell.Module(
	"bpf",
	"BPF maps in the kernel or in memory",

	cell.Config(DefaultConfig),
	cell.Provide(provideMaps, dumpCommand),
)

// The values of --bpf.
const (
	ModeAuto   = "auto"   // kernel if possible, memory if not
	ModeKernel = "kernel" // kernel or nothing
	ModeMemory = "memory" // no packet is touched
)

var modes = []string{ModeAuto, ModeKernel, ModeMemory}

// Config says where the maps are and how large.
type Config struct {
	BPF   string
	BPFFS string

	MapSizePods     uint32
	MapSizeIPCache  uint32
	MapSizeServices uint32
	MapSizeSubjects uint32
	MapSizePeers    uint32
	MapSizeEgress   uint32
	MapSizeGateways uint32
	MapSizeExits    uint32
	MapSizeCovered  uint32
	MapSizeNodes    uint32
	MapSizePolicy   uint32
	MapSizeVerdicts uint32

	// Ignored: there are no such maps any more.
	MapSizeSources uint32
	MapSizeClasses uint32
}

// DefaultConfig has room for 100,000 pods with two addresses each.
var DefaultConfig = Config{
	BPF:   ModeAuto,
	BPFFS: "/sys/fs/bpf",

	MapSizePods:     262144,
	MapSizeIPCache:  524288,
	MapSizeServices: 65536,
	MapSizeSubjects: 65536,
	MapSizePeers:    262144,
	MapSizeEgress:   131072,
	MapSizeGateways: 131072,
	MapSizeExits:    1024,
	MapSizeCovered:  65536,
	MapSizeNodes:    16384,
	MapSizePolicy:   131072,
	MapSizeVerdicts: 131072,
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("bpf", c.BPF, "Where the maps are: "+strings.Join(modes, ", "))
	flags.String("bpffs", c.BPFFS, "BPF file system in which the maps are pinned")
	for _, size := range c.sizes() {
		flags.Uint32(
			size.flag, *size.value,
			"Room for entries in the map sluice_"+strings.TrimPrefix(size.flag, "map-size-"),
		)
	}
	for flag, value := range c.ignored() {
		flags.Uint32(flag, value, "Ignored: there is no such map any more")
	}
}

// maxMapSize bounds the sizes of maps: the next power of two makes the kernel's
// table of buckets overflow 32 bits in some maps.
const maxMapSize = 1 << 26

type sizeFlag struct {
	flag  string
	value *uint32
	min   uint32
}

func (c *Config) sizes() []sizeFlag {
	return []sizeFlag{
		{"map-size-pods", &c.MapSizePods, 1},
		{"map-size-ipcache", &c.MapSizeIPCache, 1},
		{"map-size-services", &c.MapSizeServices, 1},
		{"map-size-subjects", &c.MapSizeSubjects, 1},
		{"map-size-peers", &c.MapSizePeers, 1},
		{"map-size-egress", &c.MapSizeEgress, 1},
		{"map-size-gateways", &c.MapSizeGateways, GatewayBuckets}, // at least one group
		{"map-size-exits", &c.MapSizeExits, 1},
		{"map-size-covered", &c.MapSizeCovered, 1},
		{"map-size-nodes", &c.MapSizeNodes, 1},
		{"map-size-policy", &c.MapSizePolicy, 1},
		{"map-size-verdicts", &c.MapSizeVerdicts, 1},
	}
}

// ignored returns the flags that have no meaning any more, and what they were given.
func (c *Config) ignored() map[string]uint32 {
	return map[string]uint32{
		"map-size-sources": c.MapSizeSources, "map-size-classes": c.MapSizeClasses,
	}
}

func (c *Config) validate() error {
	switch c.BPF {
	case ModeAuto, ModeKernel, ModeMemory:
	default:
		return fmt.Errorf("unknown value %q of --bpf: want one of %s", c.BPF, strings.Join(modes, ", "))
	}
	if !filepath.IsAbs(c.BPFFS) {
		return fmt.Errorf("--bpffs %q is not an absolute path", c.BPFFS)
	}
	for _, size := range c.sizes() {
		if *size.value < size.min || *size.value > maxMapSize {
			return fmt.Errorf(
				"--%s %d is out of bounds: want %d to %d", size.flag, *size.value, size.min, maxMapSize,
			)
		}
	}
	return nil
}

type mapsParams struct {
	cell.In

	Log       *slog.Logger
	Lifecycle cell.Lifecycle
	Config    Config
	Backend   Backend `optional:"true"` // stays its provider's to close
}

func provideMaps(p mapsParams) (*Maps, error) {
	if err := p.Config.validate(); err != nil {
		return nil, err
	}
	maps := newMaps(p.Config)
	var own Backend
	p.Lifecycle.Append(cell.Hook{
		OnStart: func(cell.HookContext) error {
			backend := p.Backend
			if backend == nil {
				var err error
				if backend, err = openBackend(p.Config, p.Log); err != nil {
					return err
				}
				own = backend
			}
			for flag, value := range p.Config.ignored() {
				if value != 0 {
					p.Log.Warn(
						"A flag is ignored, and will be removed: there is no such map any more",
						"flag", "--"+flag,
					)
				}
			}
			err := maps.open(backend)
			if err != nil && own != nil {
				own.Close() // a failed start hook is not stopped
			}
			return err
		},
		OnStop: func(cell.HookContext) error {
			maps.close()
			if own != nil {
				return own.Close()
			}
			return nil
		},
	})
	return maps, nil
}

// openBackend opens the back end that the configuration asks for, and says which.
func openBackend(cfg Config, log *slog.Logger) (Backend, error) {
	if cfg.BPF == ModeMemory {
		log.Info("Maps are kept in memory: no packet is touched", "reason", "--bpf=memory")
		return NewMemory(), nil
	}
	if err := Probe(cfg.BPFFS); err != nil {
		if cfg.BPF == ModeKernel {
			return nil, fmt.Errorf("--bpf=%s is not possible: %w", cfg.BPF, err)
		}
		log.Warn("Maps are kept in memory: no packet is touched", "reason", err)
		return NewMemory(), nil
	}
	kernel, err := OpenKernel(cfg.BPFFS, log)
	if err != nil {
		return nil, err
	}
	log.Info("Maps are kept in the kernel", "pinned", kernel.dir.Name())
	return kernel, nil
}
