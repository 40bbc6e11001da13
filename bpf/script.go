// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"golang.org/x/sys/unix"
)

// scriptErrors are the errors that map/fail knows.
var scriptErrors = map[string]error{
	"full":   unix.E2BIG,
	"nomem":  unix.ENOMEM,
	"eperm":  unix.EPERM,
	"einval": unix.EINVAL,
	"eio":    unix.EIO,
	"ebusy":  unix.EBUSY,
}

type commands struct {
	maps    *Maps
	backend Backend // the one that was provided, if any: it can be used before the start
}

func dumpCommand(p mapsParams, maps *Maps) hive.ScriptCmdOut {
	c := &commands{maps: maps, backend: p.Backend}
	return hive.NewScriptCmd("map/dump", script.Command(script.CmdUsage{
		Summary: "Show the entries of a map in order, one a line",
		Args:    "NAME",
	}, c.dump))
}

// FaultCell provides script commands for tests, which make maps fail and tamper with them. The
// agent does not have it.
var FaultCell = cell.Provide(faultCommands)

func faultCommands(p mapsParams, maps *Maps) hive.ScriptCmdsOut {
	c := &commands{maps: maps, backend: p.Backend}
	return hive.NewScriptCmds(map[string]script.Cmd{
		"map/fail": script.Command(script.CmdUsage{
			Summary: "Make writes to a map in memory fail",
			Args:    "NAME update|delete|any ERROR [COUNT]",
			Detail: []string{
				"The errors are " + strings.Join(errorNames(), ", ") + ".",
				"COUNT writes fail, by default 1; -1 is all until it is cleared, 0 clears.",
			},
		}, c.fail),
		"map/size": script.Command(script.CmdUsage{
			Summary: "Change the room of a map in memory",
			Args:    "NAME ENTRIES",
		}, c.size),
		"map/log": script.Command(script.CmdUsage{
			Summary: "Show the writes to maps in memory since the last call, in their order",
			Args:    "[NAME...]",
		}, c.log),
		"map/reset-log": script.Command(script.CmdUsage{
			Summary: "Forget the writes so far",
		}, c.resetLog),
		"map/corrupt": script.Command(script.CmdUsage{
			Summary: "Change an entry of a map behind the back of the agent",
			Args:    "NAME remove|change|add",
			Detail: []string{
				"The first entry of the dump is removed or changed, or an undesired one is added.",
			},
		}, c.corrupt),
	})
}

func errorNames() []string {
	var names []string
	for name := range scriptErrors {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *commands) memory() (*Memory, error) {
	backend := c.maps.Backend()
	if backend == nil {
		backend = c.backend
	}
	if m, ok := backend.(*Memory); ok {
		return m, nil
	}
	return nil, errors.New("the maps are not in memory")
}

// memoryAndMap returns the back end in memory and checks the name of a map.
func (c *commands) memoryAndMap(name string) (*Memory, error) {
	if _, err := c.maps.find(name); err != nil {
		return nil, err
	}
	return c.memory()
}

func (c *commands) dump(_ *script.State, args ...string) (script.WaitFunc, error) {
	if len(args) != 1 {
		return nil, script.ErrUsage
	}
	lines, err := c.maps.Dump(args[0])
	if err != nil {
		return nil, err // the engine takes no function beside an error
	}
	return printLines(lines), nil
}

func printLines(lines []string) script.WaitFunc {
	return func(*script.State) (stdout, stderr string, err error) {
		if len(lines) == 0 {
			return "", "", nil
		}
		return strings.Join(lines, "\n") + "\n", "", nil
	}
}

func (c *commands) fail(_ *script.State, args ...string) (script.WaitFunc, error) {
	if len(args) != 3 && len(args) != 4 {
		return nil, script.ErrUsage
	}
	m, err := c.memoryAndMap(args[0])
	if err != nil {
		return nil, err
	}
	op := Op(args[1])
	if !slices.Contains([]Op{OpUpdate, OpDelete, OpAny}, op) {
		return nil, fmt.Errorf("unknown operation %q: want update, delete or any", op)
	}
	cause, ok := scriptErrors[args[2]]
	if !ok {
		return nil, fmt.Errorf(
			"unknown error %q: want one of %s", args[2], strings.Join(errorNames(), ", "),
		)
	}
	count := 1
	if len(args) == 4 {
		if count, err = strconv.Atoi(args[3]); err != nil || count < -1 {
			return nil, fmt.Errorf("parse count %q: want a number from -1", args[3])
		}
	}
	m.Fail(args[0], op, cause, count)
	return nil, nil
}

func (c *commands) size(_ *script.State, args ...string) (script.WaitFunc, error) {
	if len(args) != 2 {
		return nil, script.ErrUsage
	}
	m, err := c.memoryAndMap(args[0])
	if err != nil {
		return nil, err
	}
	size, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("parse size: %w", err)
	}
	m.Resize(args[0], uint32(size))
	return nil, nil
}

func (c *commands) log(_ *script.State, args ...string) (script.WaitFunc, error) {
	m, err := c.memory()
	if err != nil {
		return nil, err
	}
	for _, name := range args {
		if _, err := c.maps.find(name); err != nil {
			return nil, err
		}
	}
	writes, lost := m.unseen()
	var lines []string
	if lost > 0 {
		lines = append(lines, fmt.Sprintf("(%d earlier writes are forgotten)", lost))
	}
	for _, w := range writes {
		if len(args) == 0 || slices.Contains(args, w.Map) {
			lines = append(lines, w.String())
		}
	}
	return printLines(lines), nil
}

func (c *commands) resetLog(*script.State, ...string) (script.WaitFunc, error) {
	m, err := c.memory()
	if err != nil {
		return nil, err
	}
	m.unseen()
	return nil, nil
}

func (c *commands) corrupt(_ *script.State, args ...string) (script.WaitFunc, error) {
	if len(args) != 2 {
		return nil, script.ErrUsage
	}
	h, err := c.maps.find(args[0])
	if err != nil {
		return nil, err
	}
	what, err := h.corrupt(args[1])
	if err != nil {
		return nil, err
	}
	return printLines([]string{what}), nil
}
