# Turns EPTRANSPORT_CUDA = AUTO | ON | OFF into EPTRANSPORT_CUDA_ON, and enables nvcc.
include_guard(GLOBAL)

if(NOT EPTRANSPORT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "EPTRANSPORT_CUDA is '${EPTRANSPORT_CUDA}'; give AUTO, ON or OFF")
endif()

set(EPTRANSPORT_CUDA_ON OFF)
set(EPTRANSPORT_CUDA_WHY "EPTRANSPORT_CUDA=OFF")
if(NOT EPTRANSPORT_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(EPTRANSPORT_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATH_SUFFIXES bin
                 PATHS /usr/local/cuda)
    mark_as_advanced(EPTRANSPORT_NVCC)
    if(EPTRANSPORT_NVCC AND (PROJECT_IS_TOP_LEVEL OR EPTRANSPORT_CUDA STREQUAL "ON"))
      set(CMAKE_CUDA_COMPILER ${EPTRANSPORT_NVCC})
    endif()
  endif()
  # A parent project decides for itself whether it uses nvcc: AUTO does not enable it there.
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    set(EPTRANSPORT_CUDA_ON ON)
  elseif(EPTRANSPORT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EPTRANSPORT_CUDA=ON, but nvcc was not found in PATH, CUDA_PATH, CUDA_HOME "
                        "or /usr/local/cuda. Set CUDACXX to it, or configure with "
                        "-DEPTRANSPORT_CUDA=OFF.")
  else()
    set(EPTRANSPORT_CUDA_WHY "AUTO, nvcc was not found")
  endif()
endif()

if(EPTRANSPORT_CUDA_ON)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
  # The one runtime that eptransport::cuda links, instead of a static second copy.
  if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CUDA_RUNTIME_LIBRARY)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED GLOBAL)
  set(EPTRANSPORT_CUDA_WHY
      "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
endif()

# eptransport_require_cuda_std_20(<part>): C++20 in the device code of the part's users. CMake 3.25
# has no cuda_std_20 feature for nvcc 13, so there the flag stands in for it.
function(eptransport_require_cuda_std_20 part)
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(eptransport_${part} INTERFACE cuda_std_20)
  else()
    target_compile_options(eptransport_${part} INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  endif()
endfunction()
