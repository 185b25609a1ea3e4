package chart

import "testing"

// docs/platforms.md gives the container an SELinux type, beside the chart's own
// security context.
func TestSELinuxType(t *testing.T) {
	c := devicePod(t, renderDevice(t, "--set", "gpuDevice.securityContext.seLinuxOptions.type=container_device_plugin_t")).Containers[0].SecurityContext
	if c.SELinuxOptions == nil || c.SELinuxOptions.Type != "container_device_plugin_t" {
		t.Errorf("SELinux options %+v", c.SELinuxOptions)
	}
	if c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem || c.Capabilities == nil {
		t.Errorf("the rest of the security context is gone: %+v", c)
	}
}
