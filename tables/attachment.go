// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// Attachment is a program that has to run at a device, or, with interface
// index 0, in the node's forwarding path.
type Attachment struct {
	IfIndex int         `json:"ifIndex"`
	Program bpf.Program `json:"program"`
	Device  string      `json:"device,omitempty"` // name of the device, for humans
	Origin  string      `json:"origin"`           // what needs it

	// LinkID is the kernel's number of the link by which the program is
	// attached, of the last one if there are several; 0 if there is none. The
	// reconciler writes it, and it is no part of what is wanted.
	LinkID uint32 `json:"linkID,omitempty"`

	// Behind is the kernel's number of a program of others that sees packets before this one, 0 if
	// none does. It is no part of what is wanted.
	Behind uint32 `json:"behind,omitempty"`

	Reconciled `yaml:",inline"`
}

// FormerAttachment is the origin of attachments that existed when the agent started.
const FormerAttachment = "a former agent, or the CNI plugin"

// UnknownPodAttachment is the origin of programs of a veth that was of a pod: while it exists, so
// may containers of that pod.
const UnknownPodAttachment = "a pod that is gone, or not known"

// AttachmentID is the primary key of an [Attachment].
type AttachmentID struct {
	IfIndex int
	Program bpf.Program
}

// Key is the index key of the identifier.
func (id AttachmentID) Key() index.Key { return append(index.Int(id.IfIndex), byte(id.Program)) }

func (id AttachmentID) String() string { return fmt.Sprintf("%d/%s", id.IfIndex, id.Program) }

// ID returns the primary key of the attachment.
func (a *Attachment) ID() AttachmentID { return AttachmentID{a.IfIndex, a.Program} }

// Equal reports whether two rows want the same, whatever has been made of it.
func (a *Attachment) Equal(o *Attachment) bool {
	return a.ID() == o.ID() && a.Device == o.Device && a.Origin == o.Origin
}

// TableHeader implements [statedb.TableWritable].
func (*Attachment) TableHeader() []string {
	return []string{"IfIndex", "Device", "Program", "Origin", "Link", "Behind", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (a *Attachment) TableRow() []string {
	return []string{
		indexColumn(a.IfIndex), orDash(a.Device), a.Program.String(), orDash(a.Origin),
		indexColumn(int(a.LinkID)), numberOrDash(a.Behind), a.Status.Kind.String(), orDash(a.Status.GetError()),
	}
}

// attachmentKeyString parses "ifindex/program", or with db/prefix "ifindex".
func attachmentKeyString(s string) (index.Key, error) {
	first, name, found := strings.Cut(s, "/")
	ifIndex, err := strconv.Atoi(first)
	if err != nil {
		return nil, fmt.Errorf("parse interface index: %w", err)
	}
	if !found {
		return index.Int(ifIndex), nil
	}
	var program bpf.Program
	if err := program.UnmarshalText([]byte(name)); err != nil {
		return nil, err
	}
	return AttachmentID{ifIndex, program}.Key(), nil
}

var (
	attachmentIDIndex = UniqueIndex("id", KeysOf(AttachmentID.Key, attachmentKeyString),
		(*Attachment).ID)

	attachmentDeviceIndex = Index("device", IntKeys, func(a *Attachment) int { return a.IfIndex })

	// AttachmentByID queries an attachment by its device and program.
	AttachmentByID = attachmentIDIndex.Query

	// AttachmentsByDevice queries the attachments of a device by its interface index.
	AttachmentsByDevice = attachmentDeviceIndex.Query
)

// Unattached says which of the programs that a device needs does not run there, and why; empty if
// all do.
func Unattached(
	txn statedb.ReadTxn, attachments statedb.Table[*Attachment], ifIndex uint32,
	programs ...bpf.Program,
) string {
	for _, program := range programs {
		a, _, found := attachments.Get(
			txn, AttachmentByID(AttachmentID{IfIndex: int(ifIndex), Program: program}),
		)
		switch {
		case !found:
			return fmt.Sprintf("%s at device %d", program, ifIndex)
		case a.Status.Kind == reconciler.StatusKindDone, a.Status.Kind == reconciler.StatusKindRefreshing:
		case a.Status.GetError() != "":
			return fmt.Sprintf("%s at %s: %s", program, a.Device, a.Status.GetError())
		default:
			return fmt.Sprintf("%s at %s", program, a.Device)
		}
	}
	return ""
}

// AllAttached reports whether the agent has tried to attach all programs: those of the pods that
// exist when the maps come into force are attached together with the backstop.
func AllAttached(txn statedb.ReadTxn, attachments statedb.Table[*Attachment]) bool {
	found, _ := attachments.Initialized(txn)
	if found {
		_, _, found = attachments.Get(
			txn, AttachmentByID(AttachmentID{Program: bpf.ProgramBackstop}),
		)
	}
	for a := range attachments.All(txn) {
		found = found && !a.Status.IsPendingOrRefreshing()
	}
	return found
}

// NewAttachmentTable creates the table of attachments.
var NewAttachmentTable = Declare("attachments", attachmentIDIndex, attachmentDeviceIndex)
