// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// Cell writes the ledger, if the configuration names an output.
var Cell = cell.Module(
	"ledger",
	"Which pod had an egress address and port",

	cell.Config(DefaultConfig),
	cell.Provide(Config.buffer),
	cell.Invoke(register),
)

// Config says where the ledger is written to.
type Config struct {
	LedgerFile     string
	LedgerMaxSize  int
	LedgerMaxFiles int
	LedgerBuffer   uint32

	LedgerOTLPEndpoint    string `mapstructure:"ledger-otlp-endpoint"`
	LedgerOTLPCAFile      string `mapstructure:"ledger-otlp-ca-file"`
	LedgerOTLPCertFile    string `mapstructure:"ledger-otlp-cert-file"`
	LedgerOTLPKeyFile     string `mapstructure:"ledger-otlp-key-file"`
	LedgerOTLPHeadersFile string `mapstructure:"ledger-otlp-headers-file"`
	LedgerOTLPInsecure    bool   `mapstructure:"ledger-otlp-insecure"`
}

// DefaultFile is where the ledger is looked for.
const DefaultFile = "/var/log/sluice/ledger.jsonl"

// DefaultConfig has no ledger. Its buffer is for 7 s of 50,000 connections a second that begin,
// and as many that end.
var DefaultConfig = Config{LedgerMaxSize: 100, LedgerMaxFiles: 10, LedgerBuffer: 1 << 26}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("ledger-file", c.LedgerFile,
		"File to record in which pod has an egress address and port, such as "+DefaultFile+
			"; empty: none")
	flags.Int("ledger-max-size", c.LedgerMaxSize,
		"Size in MiB with which that file is put aside for a new one")
	flags.Int("ledger-max-files", c.LedgerMaxFiles,
		"Number of these files, with those that are put aside")
	flags.String("ledger-otlp-endpoint", c.LedgerOTLPEndpoint,
		"Server of OTLP/HTTP to send the same records to as OpenTelemetry logs, such as "+
			"https://collector:4318; empty: none")
	flags.String("ledger-otlp-ca-file", c.LedgerOTLPCAFile,
		"File with the certificates, in PEM, by which that server is known; empty: the system's")
	flags.String("ledger-otlp-cert-file", c.LedgerOTLPCertFile,
		"File with the certificate, in PEM, that the agent shows to that server; empty: none")
	flags.String("ledger-otlp-key-file", c.LedgerOTLPKeyFile,
		"File with the key of that certificate, in PEM")
	flags.String("ledger-otlp-headers-file", c.LedgerOTLPHeadersFile,
		"File with headers for that server, such as Authorization, a line of NAME: VALUE each; "+
			"empty: none")
	flags.Bool("ledger-otlp-insecure", c.LedgerOTLPInsecure,
		"Send records, and these headers, to a server with http, which does not encrypt them")
	flags.Uint32("ledger-buffer", c.LedgerBuffer,
		"Buffer of these records in the kernel in bytes, a power of two: there is none without a ledger")
}

const maxBuffer = 1 << 30

func (c Config) enabled() bool { return c.LedgerFile != "" || c.LedgerOTLPEndpoint != "" }

func (c Config) validate() error {
	page := uint32(os.Getpagesize())
	switch n := c.LedgerBuffer; {
	case c.LedgerFile != "" && !filepath.IsAbs(c.LedgerFile):
		return fmt.Errorf("--ledger-file %q is not an absolute path", c.LedgerFile)
	case c.LedgerMaxSize < 1:
		return fmt.Errorf("--ledger-max-size %d: want 1 MiB at least", c.LedgerMaxSize)
	case c.LedgerMaxFiles < 2:
		return fmt.Errorf("--ledger-max-files %d: want 2 at least, as one is always being written",
			c.LedgerMaxFiles)
	case n < page || n > maxBuffer || n&(n-1) != 0:
		return fmt.Errorf("--ledger-buffer %d: want a power of two from %d to %d bytes",
			n, page, maxBuffer)
	}
	return c.validateOTLP()
}

// buffer tells the programs whether to write a ledger.
func (c Config) buffer() datapath.LedgerBuffer {
	if !c.enabled() {
		return 0
	}
	return datapath.LedgerBuffer(c.LedgerBuffer)
}

// Maps returns the maps of the ledger, nil unless programs are loaded that write one.
type Maps func() *bpf.Ledger

type params struct {
	cell.In

	Config     Config
	Maps       Maps
	DB         *statedb.DB
	Endpoints  statedb.Table[*tables.Endpoint]
	Nodes      statedb.Table[*tables.Node]
	LocalNode  tables.LocalNode
	StateDir   StateDir `optional:"true"`
	Jobs       job.Group
	Registerer prometheus.Registerer `optional:"true"`
}

func register(p params) error {
	if err := p.Config.validate(); err != nil {
		return err
	}
	m := newMetrics(p.Maps)
	if err := tables.RegisterMetrics(p.Registerer, m.all()...); err != nil {
		return err
	}
	if !p.Config.enabled() {
		return nil
	}
	r := &reader{
		maps: p.Maps, metrics: m, stateDir: p.StateDir, compareEvery: compareInterval,
		names: names{db: p.DB, endpoints: p.Endpoints, nodes: p.Nodes},
	}
	if path := p.Config.LedgerFile; path != "" {
		out := newFile(path, p.Config.LedgerMaxSize, p.Config.LedgerMaxFiles)
		r.queues = append(r.queues, newQueue("file", out, true, m))
	}
	if p.Config.LedgerOTLPEndpoint != "" {
		out, err := newOTLP(p.Config, p.LocalNode.Name)
		if err != nil {
			return err
		}
		// A slow server shall not take the room of a file's records.
		r.queues = append(r.queues, newQueue("otlp", out, p.Config.LedgerFile == "", m))
	}
	p.Jobs.Add(job.OneShot("record", r.run))
	return nil
}
