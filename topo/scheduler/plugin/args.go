package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Args are the plugin's in the scheduler's configuration: pluginConfig with the
// name Heddle. Everything has a default.
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// TopoMaster is the address of GET /node_group; "" is none, and gangs are
	// placed by free room alone.
	TopoMaster string `json:"topoMaster"`
	// CAFile has the authorities of topo-master's certificate, in PEM, and
	// TokenFile the bearer token to ask it with; both are read again and again.
	CAFile    string `json:"caFile"`
	TokenFile string `json:"tokenFile"`
	// Interval and MaxAge are how often it is asked, and how long its last map
	// is believed without an answer.
	Interval metav1.Duration `json:"interval"`
	MaxAge   metav1.Duration `json:"maxAge"`
	// WithoutMap is what becomes of gangs while there is no map: wait or place.
	// A gang's annotation may say otherwise.
	WithoutMap gang.WithoutMap `json:"withoutMap"`
	// GenericWorkload tells that the scheduler's feature gates GenericWorkload and
	// TopologyAwareWorkloadScheduling are on: pods with a schedulingGroup are in
	// the PodGroup of scheduling.k8s.io that it names, and in no other gang.
	GenericWorkload bool `json:"genericWorkload"`
	// Domains are those of the names of resources and annotations.
	Domains Domains `json:"domains"`
	// Ignored are resources that count for nothing when gangs are placed; vcore
	// and vmemory if nothing is said: they are counted card by card.
	Ignored []corev1.ResourceName `json:"ignoredResources"`
	// Placement of shares on nodes and cards: binpack or spread.
	Placement config.Placement `json:"placement"`
	// PodGroups makes a PodGroup object of scheduling.x-k8s.io for each gang that
	// labels describe.
	PodGroups bool `json:"podGroups"`
	// GPUAware are the weights of a node's published GPU topology.
	GPUAware Weights `json:"gpuAware"`
}

// Domains are names.Domains in JSON.
type Domains struct {
	Vendor  string `json:"vendor"`
	Card    string `json:"card"`
	Company string `json:"company"`
}

// Weights are those of gpu-aware: a node's mark is Weight times the score of
// the GPUs it would give, minus LossWeight times what that costs its rest.
type Weights struct {
	Weight     int64 `json:"weight"`
	LossWeight int64 `json:"loss.weight"`
}

// DefaultTopoMaster is topo-master's Service in its own namespace.
const DefaultTopoMaster = "http://heddle-topo-master.heddle-system.svc:9001/node_group"

// maxWeight bounds weights, so that no mark overflows.
const maxWeight = 1000

// readArgs is strict: an unknown field is an error.
func readArgs(object runtime.Object) (Args, error) {
	d := wellknown.DefaultDomains()
	args := Args{
		TopoMaster: DefaultTopoMaster, WithoutMap: gang.Place,
		Domains: Domains{d.Vendor, d.Card, d.Company}, PodGroups: true,
		GPUAware: Weights{1, 1}, Placement: config.PlacementBinpack,
	}
	args.Interval.Duration, args.MaxAge.Duration = topologyclient.DefaultInterval, topologyclient.DefaultMaxAge
	if unknown, ok := object.(*runtime.Unknown); ok && unknown != nil && len(unknown.Raw) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(unknown.Raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			return Args{}, fmt.Errorf("arguments of %s: %w", Name, err)
		}
	} else if object != nil && !ok {
		return Args{}, fmt.Errorf("arguments of %s: %T is no JSON", Name, object)
	}
	if err := args.check(); err != nil {
		return Args{}, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	if d := args.domains(); args.Ignored == nil {
		args.Ignored = []corev1.ResourceName{corev1.ResourceName(d.VCoreResource()), corev1.ResourceName(d.VMemoryResource())}
	}
	return args, nil
}

func (a *Args) check() error {
	var faults []error
	if a.TopoMaster != "" {
		if u, err := url.Parse(a.TopoMaster); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			faults = append(faults, fmt.Errorf("topoMaster: %q is no http address", a.TopoMaster))
		}
	}
	if (a.CAFile != "" || a.TokenFile != "") && !strings.HasPrefix(a.TopoMaster, "https://") {
		faults = append(faults, errors.New("caFile, tokenFile: topoMaster is no https address"))
	}
	if a.Interval.Duration <= 0 || a.MaxAge.Duration < a.Interval.Duration {
		faults = append(faults, errors.New("interval, maxAge: not positive, or maxAge is the shorter one"))
	}
	if a.WithoutMap != gang.Wait && a.WithoutMap != gang.Place {
		faults = append(faults, fmt.Errorf("withoutMap: %q is neither %s nor %s", a.WithoutMap, gang.Wait, gang.Place))
	}
	if a.Placement != config.PlacementBinpack && a.Placement != config.PlacementSpread {
		faults = append(faults, fmt.Errorf("placement: %q is neither %s nor %s",
			a.Placement, config.PlacementBinpack, config.PlacementSpread))
	}
	for _, domain := range []string{a.Domains.Vendor, a.Domains.Company} {
		faults = append(faults, wellknown.CheckDomain(domain))
	}
	faults = append(faults, wellknown.CheckKey(cmp.Or(a.Domains.Card, "/")))
	for _, w := range []int64{a.GPUAware.Weight, a.GPUAware.LossWeight} {
		if w < 0 || w > maxWeight {
			faults = append(faults, fmt.Errorf("gpuAware: weight %d is not 0 to %d", w, maxWeight))
		}
	}
	return errors.Join(faults...)
}

// nodeConfig has the names of shares; the rest of it is the nodes' business.
func (a *Args) nodeConfig() *config.NodeConfig {
	c := config.Default()
	d := a.domains()
	c.Domains = d
	c.Resources.GPU, c.Resources.SGPU = d.GPUResource(), d.SGPUResource()
	c.Resources.VCore, c.Resources.VMemory = d.VCoreResource(), d.VMemoryResource()
	return &c
}

func (a *Args) domains() wellknown.Domains {
	return wellknown.Domains{Vendor: a.Domains.Vendor, Card: a.Domains.Card, Company: a.Domains.Company}
}
