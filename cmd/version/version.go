// SPDX-License-Identifier: Apache-2.0

// Package version says which build of the agent this is.
package version

import (
	"runtime"
	"runtime/debug"
)

// number is set by the linker: -X github.com/sluice-net/sluice/cmd/version.number=v1.2.3.
var number string

// Info describes a build.
type Info struct {
	Version  string `json:"version"`            // release, or "devel"
	Revision string `json:"revision,omitempty"` // commit it was built from
	Modified bool   `json:"modified,omitempty"` // there were changes on top of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get returns the description of the running binary.
func Get() Info {
	info := Info{Version: number, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		info.fill(build)
	}
	if info.Version == "" {
		info.Version = "devel"
	}
	return info
}

func (i *Info) fill(build *debug.BuildInfo) {
	if v := build.Main.Version; i.Version == "" && v != "(devel)" {
		i.Version = v
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Revision = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
}

// String returns the version as one line.
func (i Info) String() string {
	s := "sluice " + i.Version
	if i.Revision != "" {
		s += " (" + i.Revision[:min(12, len(i.Revision))]
		if i.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + " " + i.Go + " " + i.Platform
}
