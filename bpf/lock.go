// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// ErrNoPins says that there are no pinned maps.
var ErrNoPins = errors.New("no agent has run with kernel maps here")

// LockPins takes the lock that the agent holds on the pinned maps of a BPF file
// system, for who changes what only one may change at a time. To close it gives
// it back. It fails with [ErrInUse] while an agent runs, and with [ErrNoPins] if
// none ever has.
func LockPins(bpffs string) (io.Closer, error) {
	if mounted, err := isBPFFS(bpffs); err != nil {
		return nil, err
	} else if !mounted {
		return nil, fmt.Errorf("%s is no BPF file system: %w", bpffs, ErrNoPins)
	}
	lock, err := lockDir(MapsDir(bpffs))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: %w", MapsDir(bpffs), ErrNoPins)
	} else if err != nil {
		return nil, err
	}
	return lock, nil
}
