// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// PinnedPrograms are the programs that an agent pins, by their names, in [ProgramsDir]:
// with them a CNI plugin can hold a new pod while no agent runs. They exist once an
// agent has had the programs hold pods since the node booted, and they use the maps of
// the agent that pinned them: an agent that starts may have pinned others.
var PinnedPrograms = []Program{ProgramFromPod, ProgramToPod}

// PinProgram pins a program in a directory under its name, in the place of that of a
// former agent: at no moment is there none. It does nothing, and returns false, if it is pinned
// already.
func PinProgram(dir string, p Program, program *ebpf.Program) (pinned bool, err error) {
	path := filepath.Join(dir, p.String())
	same, err := isPinned(path, program)
	if same || err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("create directory of programs: %w", err)
	}
	clone, err := program.Clone() // one that is pinned twice loses its first pin
	if err != nil {
		return false, fmt.Errorf("pin program %s: %w", p, err)
	}
	defer clone.Close()
	if err := replacePin(clone.Pin, path); err != nil {
		return false, fmt.Errorf("pin program %s: %w", p, err)
	}
	return true, nil
}

// isPinned reports whether a path is a pin of the program. What cannot be opened as a
// program is as good as none.
func isPinned(path string, program *ebpf.Program) (bool, error) {
	pinned, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return false, nil
	}
	defer pinned.Close()
	is, err := pinned.Info()
	if err != nil {
		return false, fmt.Errorf("look at pinned program: %w", err)
	}
	want, err := program.Info()
	if err != nil {
		return false, fmt.Errorf("look at program: %w", err)
	}
	a, _ := is.ID()
	b, ok := want.ID()
	return ok && a == b, nil
}

// CleanupPrograms removes the pinned programs of a BPF file system, and returns their
// names. What is attached runs on. It fails with [ErrInUse] while an agent runs.
func CleanupPrograms(bpffs string) (removed []string, err error) {
	lock, err := lockPinDir(bpffs)
	if lock == nil || err != nil {
		return nil, err
	}
	defer lock.Close()
	dir := ProgramsDir(bpffs)
	if removed, err = removePins(dir, nil); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return removed, err
	}
	if err := os.Remove(dir); err != nil {
		return removed, fmt.Errorf("remove directory of programs: %w", err)
	}
	return removed, nil
}
