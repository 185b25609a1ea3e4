package wellknown

// Product returns the label, and the taint, with the accelerator's model.
func (d Domains) Product() string { return d.GPUKey("product") }

// Usage returns the label, and the taint, with what a node is for.
func (d Domains) Usage() string { return d.CompanyKey("node.usage") }

// ControlPlane returns the label, and the taint, of nodes kept for the control
// plane.
func (d Domains) ControlPlane() string { return d.CompanyKey("control-plane") }

// NodeTaints lists every taint key that discovery may write.
func (d Domains) NodeTaints() []string {
	all := []string{d.Usage(), d.ControlPlane()}
	for _, domains := range d.Each() {
		all = append(all, domains.Product())
	}
	return all
}

// UnhealthyGPU is the key of the taint of a Node on which a GPU stays unhealthy, of effect
// NoSchedule; its value is empty. heddle-device-plugin writes it where
// health.remediation is on.
const UnhealthyGPU = Prefix + "gpu-unhealthy"

// RejectsPods is the key of the taint of a Node that heddle-device-plugin has withdrawn because it rejects pod after
// pod, of effect NoSchedule; its value is empty.
const RejectsPods = Prefix + "rejects-pods"

// OwnedTaints is the Node annotation that records which taints heddle set, as a
// JSON list of "key:effect": taints are an atomic list without owners.
const OwnedTaints = Prefix + "owned-taints"

// DriverAbsentSince is the Node annotation with the time, in RFC 3339, since which
// discovery keeps the Node's labels and taints without a GPU driver.
const DriverAbsentSince = Prefix + "driver-absent-since"
