package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/heddle-dev/heddle/api/claims"
)

func TestWhy(t *testing.T) {
	rails := func(one *resourceapi.ExactDeviceRequest) {
		for _, e := range []string{"rail > 1", "rail < 1"} {
			one.Selectors = append(one.Selectors, selectors("device.attributes['%s'].%s", claims.Driver, e)...)
		}
	}
	rail := resourceapi.FullyQualifiedName(claims.Driver + "/" + claims.AttributeNVLink)
	for _, tt := range []struct {
		name     string
		used     []string
		match    *resourceapi.FullyQualifiedName
		requests []resourceapi.DeviceRequest
		want     string
	}{
		{"room", nil, nil, []resourceapi.DeviceRequest{request(claims.ClassGPU, 3, nil)}, ""},
		{
			"in use",
			[]string{"pair-0"},
			nil,
			[]resourceapi.DeviceRequest{request(claims.ClassGPU, 4, nil)},
			`request "r": 3 of 4 devices free, 4 requested`,
		},
		{
			"too many", nil, nil,
			[]resourceapi.DeviceRequest{request(claims.ClassPair, 5, nil)},
			`request "r": 4 devices of DeviceClass gpu-hca.heddle.dev, 5 requested`,
		},
		{
			"the second selector", nil, nil,
			[]resourceapi.DeviceRequest{
				request(claims.ClassGPU, 1, rails),
			},
			`request "r": 0 of 2 devices match selector device.attributes['devices.heddle.dev'].rail < 1`,
		},
		{
			"capacity that no GPU has", nil, nil,
			[]resourceapi.DeviceRequest{request("sgpu.heddle.dev", 1, share("30", "81Gi"))},
			`request "r": 0 of 4 devices have capacity vcore 30, vmemory 81Gi`,
		},
		{
			"capacity in use",
			[]string{"pair-0", "pair-1", "gpu-2", "gpu-3"},
			nil,
			[]resourceapi.DeviceRequest{request("sgpu.heddle.dev", 1, share("30", "24Gi"))},
			`request "r": 0 of 4 devices have capacity vcore 30, vmemory 24Gi free`,
		},
		{
			"a constraint",
			[]string{"gpu-0"},
			&rail,
			[]resourceapi.DeviceRequest{request(claims.ClassGPU, 3, nil)},
			`no free devices meet constraint matchAttribute devices.heddle.dev/nvlinkGroup`,
		},
		{"alternatives", []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}, nil, []resourceapi.DeviceRequest{{
			Name: "part", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "hca", DeviceClassName: "hca.heddle.dev", Count: 5}, {Name: "gpu", DeviceClassName: claims.ClassGPU, Count: 1},
			},
		}}, `request "part": 4 devices of DeviceClass hca.heddle.dev, 5 requested; 0 of 4 devices free`},
		{"together", nil, nil, []resourceapi.DeviceRequest{
			request(claims.ClassGPU, 2, nil), {Name: "pairs", Exactly: request(claims.ClassPair, 3, nil).Exactly},
		}, "requests together: too few devices are free"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newManager("a")
			m.allocate(tt.used...)
			n := m.read(t, New(t.Context()))
			pod := m.pod("one", "", tt.requests...)
			if tt.match != nil {
				m.claims["ai/one-devices"].Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: tt.match}}
			}
			want := tt.want
			if want != "" {
				want = `claim "devices", ` + want
			}
			d := m.demands(t, n, pod)[0]
			if diff := cmp.Diff(want, n.Of("a").Why(node("a"), d)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n.Of("none").Why(node("none"), d) != "no devices for claims" {
				t.Error("a node without devices")
			}
		})
	}
}

// The taints of devices count, and the claims of one pod together.
func TestWhyOfAPod(t *testing.T) {
	m := newManager("a")
	sick := []resourceapi.DeviceTaint{{Key: claims.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	m.slices[0].Spec.Devices[0].Taints, m.slices[0].Spec.Devices[2].Taints = sick, sick
	n := m.read(t, New(t.Context()))
	pod := m.pod("one", "", request(claims.ClassGPU, 4, nil))
	const tainted = `claim "devices", request "r": 3 of 4 devices have no taint that it does not tolerate, 4 requested`
	if got := n.Of("a").Why(node("a"), m.demands(t, n, pod)[0]); got != tainted {
		t.Error(got)
	}
	two := m.pod("two", "", request(claims.ClassGPU, 2, nil))
	more := "more"
	two.Spec.ResourceClaims = append(two.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "more", ResourceClaimName: &more})
	m.claim(more, request("hca.heddle.dev", 1, nil), resourceapi.DeviceRequest{Name: "pairs", Exactly: request(claims.ClassPair, 2, nil).Exactly})
	const together = `claim "more", request "pairs": 1 of 3 devices free, 2 requested`
	if got := n.Of("a").Why(node("a"), m.demands(t, n, two)[0]); got != together {
		t.Error(got)
	}
}
