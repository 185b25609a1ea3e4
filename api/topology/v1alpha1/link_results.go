package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LinkTest has the results of `heddle fabric test` for one port of an HCA.
type LinkTest struct {
	// HCA, ID, Port and Netdev are as in [Rail].
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	HCA string `json:"hca"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	ID string `json:"id"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	Port int32 `json:"port"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Netdev string `json:"netdev,omitempty"`
	// Results are the last ones, the newest first.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	Results []LinkResult `json:"results"`
}

// LinkResult is the result of one test.
type LinkResult struct {
	// Time is the end of the test, by the clock of its driver.
	Time metav1.Time `json:"time"`
	// Gbps is the median bandwidth of the port's flows, in 10^9 bits a second, 0 if all failed; ExpectedGbps the bandwidth
	// that the link and the HCA's PCIe link allow, 0 if unknown.
	// +kubebuilder:validation:Minimum=0
	Gbps int32 `json:"gbps"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	ExpectedGbps int32 `json:"expectedGbps,omitempty"`
	// LatencyNanoseconds is the median of the flows' typical latencies of a read.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LatencyNanoseconds int32 `json:"latencyNanoseconds,omitempty"`
	// Fault names the place that the test found to be slow: cable, hca, leaf or uplinks. Absent if the port is good.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Fault string `json:"fault,omitempty"`
	// What is bandwidth, latency or failure, Value the worst value of a fault, and Limit its limit, both with their unit.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z-]*$`
	What string `json:"what,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Value string `json:"value,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Limit string `json:"limit,omitempty"`
	// Versions are the versions of the programs, such as: perftest 6.10, firmware 28.41.1000.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Versions string `json:"versions,omitempty"`
}
