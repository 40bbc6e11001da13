// SPDX-License-Identifier: Apache-2.0

// Package cnifile is how the CNI plugin tells the agent of pods' network
// interfaces: one file in a directory for each, from its ADD to its DEL. The
// directory is on a tmpfs, so that nothing outlives the interfaces themselves.
//
// A file is replaced as a whole, and the plugin needs no agent to write it: the
// directory is the state, and every agent that starts reads it.
package cnifile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Attachment is a network interface of a pod.
type Attachment struct {
	Container string `json:"container"` // ID of the sandbox
	IfName    string `json:"ifName"`    // inside the pod
	Network   string `json:"network"`   // name of the CNI configuration

	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid,omitempty"` // as the kubelet knows it, if the runtime told

	// The other end of the pod's interface, on the node; none if the interface is
	// no veth, or has no address. Reason then says what it is.
	Device  string `json:"device,omitempty"`
	IfIndex int    `json:"ifIndex,omitempty"`
	Reason  string `json:"reason,omitempty"`

	MAC     string       `json:"mac"` // of the pod's interface
	Addrs   []netip.Addr `json:"addrs"`
	Created time.Time    `json:"created"`

	// Runtime is the name of the process that called the plugin. It matters for
	// removing the plugin: see [Runtimes].
	Runtime string `json:"runtime,omitempty"`
}

// suffix ends the names of files of attachments. Others are not looked at, as
// are those that begin with a dot: files that are being written.
const suffix = ".json"

// FileName is the name of the file of an interface.
func FileName(container, ifName string) string { return container + "-" + ifName + suffix }

// IsFile reports whether a file is of an attachment, by its name.
func IsFile(name string) bool {
	return strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, ".")
}

// Write writes the file of an attachment, in place of a former one.
func Write(dir string, a *Attachment) error {
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode attachment: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create directory of attachments: %w", err)
	}
	name := FileName(a.Container, a.IfName)
	temporary, err := os.CreateTemp(dir, "."+name+"-")
	if err != nil {
		return fmt.Errorf("write attachment: %w", err)
	}
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
		return fmt.Errorf("write attachment: %w", err)
	}
	return nil
}

// Remove removes the file of an interface. It is no error that there is none.
func Remove(dir, container, ifName string) error {
	return remove(filepath.Join(dir, FileName(container, ifName)))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove attachment: %w", err)
	}
	return nil
}

// Read reads a file by its name in the directory. The error is [fs.ErrNotExist]
// if there is none.
func Read(dir, name string) (*Attachment, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	a := &Attachment{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, fmt.Errorf("parse attachment: %w", err)
	}
	if err := a.check(name); err != nil {
		return nil, err
	}
	return a, nil
}

// check returns an error for a file that the plugin did not write.
func (a *Attachment) check(name string) error {
	switch {
	case FileName(a.Container, a.IfName) != name:
		return fmt.Errorf("parse attachment: it is of container %q, interface %q", a.Container, a.IfName)
	case a.Namespace == "" || a.Pod == "":
		return errors.New("parse attachment: it names no pod")
	case len(a.Addrs) == 0 && a.Reason == "":
		return errors.New("parse attachment: it has no addresses")
	case (a.IfIndex <= 0 || a.Device == "") && a.Reason == "":
		return errors.New("parse attachment: it has no device")
	}
	for _, addr := range a.Addrs {
		if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" {
			return fmt.Errorf("parse attachment: %q is no address of a pod", addr)
		}
	}
	return nil
}

// List returns the names of the files in a directory, none if there is no such
// directory.
func List(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list attachments: %w", err)
	}
	for _, e := range entries {
		if IsFile(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Keep removes the files of interfaces that are not kept.
func Keep(dir string, keep func(container, ifName string) bool) error {
	return prune(dir, func(a *Attachment) bool { return keep(a.Container, a.IfName) })
}

// Collect removes the files of interfaces of a network that are not valid any more.
func Collect(dir, network string, valid func(container, ifName string) bool) error {
	return prune(dir, func(a *Attachment) bool {
		return a.Network != network || valid(a.Container, a.IfName)
	})
}

// prune removes the files that are not kept, and those that cannot be read.
func prune(dir string, keep func(*Attachment) bool) error {
	names, err := List(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		a, err := Read(dir, name)
		if err == nil && keep(a) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		errs = append(errs, remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// Devices returns the interface indexes of the nodes' ends of interfaces, and when these were
// made.
func Devices(dir string) (map[int]time.Time, error) {
	devices := map[int]time.Time{}
	return devices, each(dir, func(a *Attachment) { devices[a.IfIndex] = a.Created })
}

// Runtimes returns the names of the processes that called the plugin for the
// interfaces that there are. A runtime other than containerd may call it for DEL
// also after it is out of the configuration, which CRI-O keeps with each pod.
func Runtimes(dir string) (map[string]bool, error) {
	runtimes := map[string]bool{}
	return runtimes, each(dir, func(a *Attachment) { runtimes[a.Runtime] = true })
}

// each calls f with each attachment that can be read.
func each(dir string, f func(*Attachment)) error {
	names, err := List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if a, err := Read(dir, name); err == nil {
			f(a)
		}
	}
	return nil
}
