// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const modulePath = "github.com/sluice-net/sluice"

// builder makes the files of a version.
type builder struct {
	version, source, output string
	time                    time.Time
}

// platform builds the binary for a platform, and writes its archive and its bill.
func (b builder) platform(ctx context.Context, arch string) error {
	dir, err := os.MkdirTemp("", "sluice-release-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "sluice")
	if err := b.compile(ctx, arch, dir); err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("read what the binary was built from: %w", err)
	}
	modules, err := linked(ctx, info)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.output, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	name := fmt.Sprintf("sluice-%s-linux-%s", b.version, arch)
	if err := b.writeBill(filepath.Join(b.output, name+".cdx.json"), binary, info, modules); err != nil {
		return err
	}
	// The bill is of the agent: all that the plugin is made of is in it.
	return b.writeArchive(filepath.Join(b.output, name+".tar.gz"), name, modules, binary, filepath.Join(dir, "sluice-cni"))
}

// compile builds the binaries so that they depend on the sources and on Go only: not on
// where they are, on a C compiler, or on the state of the repository.
func (b builder) compile(ctx context.Context, arch, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -X "+modulePath+"/cmd/version.number="+b.version, "-o", dir+"/", "./cmd/sluice", "./cmd/sluice-cni")
	cmd.Dir = b.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the binaries: %w", err)
	}
	return nil
}
