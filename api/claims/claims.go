// Package claims spells what heddle publishes to Dynamic Resource Allocation: the driver, its DeviceClasses,
// the attributes and taints of its devices, and the parameters of ResourceClaims.
package claims

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
)

// Driver is the name of heddle's DRA driver. One driver has the GPUs and the HCAs of a node, so that those
// of a claim are prepared together.
const Driver = "devices.heddle.dev"

// ClassSuffix is the end of the names of heddle's DeviceClasses: gpu.heddle.dev.
const ClassSuffix = ".heddle.dev"

// DeviceClasses of whole GPUs: alone, and in a pair.
const (
	ClassGPU  = "gpu" + ClassSuffix
	ClassPair = "gpu-hca" + ClassSuffix
)

// Type is the attribute "type" of a device.
type Type string

// The types of devices. A pair is a GPU with the HCA that is nearest to it. Monitor is a GPU for adminAccess: the
// scheduler of Kubernetes 1.37 gives a device with counters or capacity to no administrator while it is used. IMEX is
// a channel of an NVLink clique, which no node has alone.
const (
	GPU     Type = "gpu"
	Pair    Type = "pair"
	Monitor Type = "monitor"
	HCA     Type = "hca"
	MIG     Type = "mig"
	IMEX    Type = "imex"
)

// Attributes of devices, below the driver's domain.
const (
	AttributeType         = "type"
	AttributeUUID         = "uuid"
	AttributeParent       = "parentUUID"
	AttributeProduct      = "productName"
	AttributeArchitecture = "architecture"
	AttributeDriver       = "driverVersion"
	AttributeProfile      = "profile"
	AttributeClique       = "clique"
	AttributeNVLink       = "nvlinkGroup"
	AttributeHCA          = "hca"
	AttributeRail         = "rail"
	AttributeRate         = "rateGbps"
	AttributeLinkLayer    = "linkLayer"
)

// Capacities of GPUs that claims may share: percent of compute, and bytes of memory.
const (
	CapacityVCore   = "vcore"
	CapacityVMemory = "vmemory"
)

// The IMEX channels of an NVLink clique are a pool with the clique's name behind a prefix:
// "imex/<clusterUUID>.<cliqueID>". Channels 1 to Channels are published, as many devices as one ResourceSlice can have
// and more than the GPUs of a clique. Channel 0 is for nodes that give it to all containers.
const (
	poolIMEX      = "imex/"
	deviceChannel = "channel-"
	Channels      = 128
)

// ChannelPool returns the name of the pool of a clique.
func ChannelPool(clique string) string { return poolIMEX + clique }

// ChannelDevice returns the name of the device of a channel.
func ChannelDevice(number int) string { return deviceChannel + strconv.Itoa(number) }

// ParseChannel returns the channel of a device and the clique of its pool; false for a device of a node.
func ParseChannel(pool, device string) (clique string, number int, ok bool) {
	clique, ok = strings.CutPrefix(pool, poolIMEX)
	number, _ = strconv.Atoi(strings.TrimPrefix(device, deviceChannel))
	return clique, number, ok && number >= 1 && number <= Channels && device == ChannelDevice(number)
}

// Keys of taints of devices.
const (
	TaintUnhealthy   = Driver + "/unhealthy"
	TaintUnavailable = Driver + "/unavailable"
)

// The parameters of a claim, in spec.devices.config[].opaque.
const (
	APIVersion     = "claims.heddle.dev/v1alpha1"
	ParametersKind = "DeviceParameters"
)

// Parameters are the opaque parameters of a request.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Policy is the QoS policy of a share; empty is the node's default.
	Policy config.QoSPolicy `json:"policy,omitempty"`
}

// ParseParameters decodes parameters. The error names the field that is unknown or invalid.
func ParseParameters(text []byte) (*Parameters, error) {
	p := &Parameters{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parameters: data after the object")
	}
	policies := []config.QoSPolicy{"", config.FixedShare, config.BurstShare, config.BestEffort}
	switch {
	case p.APIVersion != APIVersion:
		return nil, fmt.Errorf("parameters: unsupported apiVersion %.64q, want %s", p.APIVersion, APIVersion)
	case p.Kind != ParametersKind:
		return nil, fmt.Errorf("parameters: unsupported kind %.64q, want %s", p.Kind, ParametersKind)
	case !slices.Contains(policies, p.Policy):
		return nil, fmt.Errorf("parameters: policy: unsupported value %.64q: supported values are fixed-share, "+
			"burst-share, best-effort", p.Policy)
	}
	return p, nil
}
