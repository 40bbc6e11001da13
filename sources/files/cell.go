// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/testdata/demo"
)

// Cell reads objects from manifests, if these are the source.
var Cell = cell.Module(
	"files",
	"Objects of manifests",

	cell.Config(Config{}),
	cell.Invoke(register),
)

// Config says which manifests to read.
type Config struct {
	Manifests string
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("manifests", c.Manifests, "directory to read objects from with --source=files, and to follow; a small built-in demo if empty")
}

type params struct {
	cell.In

	Config    Config
	Objects   objects.Config
	Reads     objects.Reads
	DB        *statedb.DB
	Log       *slog.Logger
	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Tables    objects.Tables
}

// register adds the job that reads manifests. The tables are initialized when
// all of them have been read once.
func register(p params) error {
	if p.Objects.Source != objects.SourceFiles {
		if p.Config.Manifests != "" {
			return errors.New("flag --manifests needs --source=" + objects.SourceFiles)
		}
		return nil
	}
	var fsys fs.FS = demo.FS
	if dir := p.Config.Manifests; dir != "" {
		fsys = os.DirFS(dir)
		p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error { return checkDir(dir) }})
	}
	s := newSource(p, fsys, p.Config.Manifests)
	p.Jobs.Add(job.OneShot("read-manifests", s.run, job.WithShutdown()))
	return nil
}

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("flag --manifests: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("flag --manifests: %s is not a directory", dir)
	}
	return nil
}
