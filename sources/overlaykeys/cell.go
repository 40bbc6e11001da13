// SPDX-License-Identifier: Apache-2.0

// Package overlaykeys reads the keys of the overlay from a file, which is part of a mounted Secret,
// and follows it:
//
//	--overlay-keys ──► overlay-keys
//
// The file has one or two keys, each on a line of its own as 32 hexadecimal digits. Overlay packets
// are sent with a proof by the first, and accepted with one by any of them. While the file cannot
// be used, the keys stay as they were.
package overlaykeys

import (
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

// Cell reads the keys of the overlay: overlay-keys.
var Cell = cell.Module(
	"overlay-keys",
	"Keys of the overlay",

	cell.Config(DefaultConfig),
	tables.OwnDesired(tables.NewOverlayKeysTable),
	cell.Provide(source),
	cell.Invoke(register),
)

// Config says where the keys are.
type Config struct {
	OverlayKeys           string
	OverlayAcceptUnsigned bool
}

// DefaultConfig has no keys.
var DefaultConfig = Config{OverlayAcceptUnsigned: true}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("overlay-keys", c.OverlayKeys,
		"File with the keys by which nodes prove the origin of overlay packets, which is followed: "+
			"one or two lines of 32 hexadecimal digits; the first is sent with; empty is no proof")
	flags.Bool("overlay-accept-unsigned", c.OverlayAcceptUnsigned,
		"Accept overlay packets without such a proof, as nodes of a former version send them")
}

func (c Config) validate() error {
	if c.OverlayKeys != "" && !filepath.IsAbs(c.OverlayKeys) {
		return errors.New("flag --overlay-keys: want an absolute path")
	}
	return nil
}

func source(c Config, keys statedb.Table[*tables.OverlayKeys]) tables.SourceOut {
	out := tables.NewSourceOut("key-file", keys)
	out.Source.Tables[0].What = c.OverlayKeys
	return out
}

type params struct {
	cell.In

	Config Config
	DB     *statedb.DB
	Log    *slog.Logger
	Jobs   job.Group
	Keys   statedb.RWTable[*tables.OverlayKeys]
}

// register adds the job that reads the keys. The table is initialized when it has tried to once:
// without a key packets go on, if that is permitted.
func register(p params) error {
	if err := p.Config.validate(); err != nil {
		return err
	}
	wtxn := p.DB.WriteTxn(p.Keys)
	initialized := p.Keys.RegisterInitializer(wtxn, "file-of-keys")
	wtxn.Commit()
	f := &follower{
		db: p.DB, log: p.Log, config: p.Config, table: p.Keys, watcher: dirwatch.New(),
		initialized: initialized,
	}
	p.Jobs.Add(job.OneShot("read-overlay-keys", f.run, job.WithShutdown()))
	return nil
}
