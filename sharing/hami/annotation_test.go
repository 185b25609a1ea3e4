package hami_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

func gpu(uuid string, index int, do ...func(*hami.GPU)) hami.GPU {
	c := hami.GPU{BDF: "0000:01:00.0", Model: "NVIDIA H200", GPU: quota.GPU{
		UUID: uuid, Index: index, MemoryMiB: total, Slots: 16, Zone: 1,
	}}
	for _, f := range do {
		f(&c)
	}
	return c
}

func TestAnnotation(t *testing.T) {
	const idle = `{"uuid":"GPU-aaaa-0000-0001","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"availableDevCount":16,"availableCompute":100,"availableVRam":143771,"numa":0,"healthy":true,"qosPolicy":"","linkZone":1}`
	const shut = `{"uuid":"GPU-aaaa-0000-0001","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"availableDevCount":16,"availableCompute":100,"availableVRam":143771,"numa":0,"healthy":false,"qosPolicy":"","linkZone":1}`
	const used = `{"uuid":"GPU-bbbb-0000-0002","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"availableDevCount":14,"availableCompute":10,"availableVRam":141723,"numa":-1,"healthy":true,"qosPolicy":"burst-share","linkZone":0}`
	const whole = `{"uuid":"GPU-bbbb-0000-0002","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"availableDevCount":15,"availableCompute":0,"availableVRam":0,"numa":0,"healthy":true,"qosPolicy":"","linkZone":1}`
	const odd = `{"uuid":"GPU-bbbb-0000-0002","bdf":"","model":"","totalDevCount":0,"totalCompute":100,` +
		`"totalVRam":2147483647,"availableDevCount":0,"availableCompute":0,"availableVRam":0,"numa":0,"healthy":true,"qosPolicy":"","linkZone":0}`
	shared := gpu(gpuB, 1, func(c *hami.GPU) {
		c.NUMA, c.Zone, c.Consumers, c.VCore, c.UsedMiB, c.Policy = -1, 0, 2, 90, 2048, quota.BurstShare
	})
	for _, tt := range []struct {
		name, want string
		gpus       []hami.GPU
		closed     bool
	}{
		{name: "none", want: "[]"},
		{name: "one", gpus: []hami.GPU{gpu(gpuA, 0)}, want: "[" + idle + "]"},
		{name: "by index", gpus: []hami.GPU{shared, gpu(gpuA, 0)}, want: "[" + idle + "," + used + "]"},
		{name: "lost", gpus: []hami.GPU{gpu(gpuA, 0, func(c *hami.GPU) { c.Unhealthy = "lost" }), shared}, want: "[" + shut + "," + used + "]"},
		{name: "closed", gpus: []hami.GPU{gpu(gpuA, 0)}, closed: true, want: "[" + shut + "]"},
		{name: "one consumer has it all", gpus: []hami.GPU{gpu(gpuB, 0, func(c *hami.GPU) {
			c.Consumers, c.VCore, c.UsedMiB, c.Exclusive, c.Policy = 1, 100, total, true, quota.FixedShare
		})}, want: "[" + whole + "]"},
		{name: "a policy without consumers", gpus: []hami.GPU{gpu(gpuA, 0, func(c *hami.GPU) { c.Policy = quota.BurstShare })}, want: "[" + idle + "]"},
		{name: "more than fits", gpus: []hami.GPU{{GPU: quota.GPU{UUID: gpuB, MemoryMiB: math.MaxInt64, UsedMiB: math.MaxInt64, Consumers: 9, VCore: 300}}}, want: "[" + odd + "]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, hami.Annotation(tt.gpus, !tt.closed)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
