// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// DeviceKey is the key of sluice_devices: the host side of a pod's veth.
type DeviceKey struct{ IfIndex uint32 }

func (k DeviceKey) String() string { return fmt.Sprintf("ifindex=%d", k.IfIndex) }

// DeviceValue is the value of sluice_devices: the pod that the device leads to.
type DeviceValue struct {
	Addr Address // one of the pod's, by which sluice_pods has it
}

func (v DeviceValue) String() string { return v.Addr.String() }
